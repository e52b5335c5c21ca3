from __future__ import annotations

import os

import pytest

from holdfast.dataplane.memory.arena import Arena, Sections, discard, grow


def sections() -> Sections:
    made = Sections()
    made.add("one", 10)
    made.add("none", 0)
    made.add("two", 5000)
    return made


def test_sections_follow_each_other_on_pages_of_their_own() -> None:
    made = sections()
    assert made.spans == {"one": (0, 10), "none": (4096, 0), "two": (8192, 5000)}
    assert made.size == 8192 + 8192


def test_a_name_can_be_added_once() -> None:
    made = sections()
    with pytest.raises(ValueError, match="section 'two' was added twice"):
        made.add("two", 1)


def test_private_memory_is_zero_and_writable() -> None:
    arena = Arena(sections())
    section = arena.section("two")
    assert (len(section), bytes(section)) == (5000, bytes(5000))
    section[4999] = 7
    assert arena.section("two")[4999] == 7
    section.release()
    arena.close()


def test_two_arenas_over_one_descriptor_share_their_bytes_and_outlive_it() -> None:
    made = sections()
    fd = os.memfd_create("test")
    os.ftruncate(fd, made.size)
    one, two = Arena(made, fd=fd), Arena(made, fd=fd)
    os.close(fd)
    one.section("one")[3] = 9
    one.close()
    assert two.section("one")[3] == 9
    two.close()


@pytest.mark.parametrize("begin", [0, 8192])
def test_an_isolated_arena_keeps_its_place_and_what_it_writes_to_itself(begin: int) -> None:
    made = sections()
    fd = os.memfd_create("test")
    os.ftruncate(fd, begin + made.size)
    one, two = Arena(made, fd=fd, begin=begin), Arena(made, fd=fd, begin=begin)
    mine, theirs = one.section("two"), two.section("two")
    mine[0] = theirs[4999] = 5
    one.isolate()
    assert (mine[0], mine[4999]) == (5, 5), "what was there is there, where it was"
    mine[0] = 6
    assert (mine[0], theirs[0]) == (6, 5)
    os.close(fd)


def test_memory_of_one_process_is_copied_by_a_fork() -> None:
    arena = Arena(sections())
    arena.section("one")[0] = 1
    ours, theirs = os.pipe()
    if (pid := os.fork()) == 0:
        arena.isolate()
        arena.section("one")[0] += 1
        os.write(theirs, bytes(arena.section("one")[:1]))
        os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(ours, 1) == b"\x02" and arena.section("one")[0] == 1
    os.close(ours)
    os.close(theirs)


def test_close_leaves_memory_that_is_still_looked_at() -> None:
    arena = Arena(sections())
    section = arena.section("one")
    arena.close()
    section[0] = 1
    assert section[0] == 1


def test_memory_that_grows_and_is_given_back() -> None:
    fd = os.memfd_create("test")
    try:
        os.ftruncate(fd, 4096)
        grow(fd, 3 * 4096)
        grow(fd, 4096)
        assert os.fstat(fd).st_size == 3 * 4096
        sections = Sections()
        sections.add("pushes", 5000)
        room = Arena(sections, fd=fd, begin=4096)
        room.section("pushes")[:] = bytes([1]) * 5000
        assert os.pread(fd, 1, 4096) == b"\1" and os.fstat(fd).st_blocks == 16
        discard(fd, [(4096, 5000)])
        assert os.fstat(fd).st_blocks == 0 and bytes(room.section("pushes")) == bytes(5000)
    finally:
        os.close(fd)
