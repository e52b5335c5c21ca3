"""A worker of a relaxed mode: what it does while others are in the middle of something, or died in it."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.core.roles import Assignment
from holdfast.core.sync.modes import Clocks, parse
from holdfast.core.sync.staleness import Staleness
from holdfast.dataplane.memory.arena import Arena
from holdfast.dataplane.memory.board import Board
from holdfast.dataplane.memory.sections import lay_out_mode
from holdfast.dataplane.relaxed.push_gradients import PushGradients
from holdfast.dataplane.relaxed.pushes import Pushes, pushes_bytes
from holdfast.dataplane.relaxed.relaxed_member import Course, RelaxedMember
from tests.unit.dataplane.members import LANES, ROWS, Worker
from tests.unit.dataplane.relaxed.of_modes import ALL

MODE, COURSE = parse("async"), Course(0, 5, lambda step: (3,) * LANES)


class Asked:
    """Controls of a worker that is asked for quiet when it looks for the third time; `quiet` is what happens then."""

    def __init__(self, quiet: Callable[[], None]) -> None:
        self.looks, self.rests, self._quiet = 0, 0, quiet

    @property
    def pausing(self) -> bool:
        return self.looks >= 3 and not self.rests

    def look(self) -> None:
        self.looks += 1

    def rest(self, step: int) -> None:
        assert self.pausing
        self.rests += 1
        self._quiet()

    def wait(self, changed: Callable[[], bool]) -> None:
        raise AssertionError("there is nothing to wait for")

    def ring(self) -> None:
        """Nobody to wake."""


def relaxed(controls: Asked) -> RelaxedMember:
    worker = Worker(0, 0)
    member = RelaxedMember(worker.space, worker.board, worker.gradients, worker.slices, worker.buffers, controls)
    sections = lay_out_mode(worker.space.room(LANES), MODE)
    pushes = Pushes(memoryview(bytearray(pushes_bytes(LANES))), LANES)
    gradients = PushGradients(worker.space, Arena(sections), LANES)
    member.set_pace(MODE, Staleness(), pushes, gradients, lambda step: worker.member.hyper)
    member.install(0, Assignment([0], [0], [0] * LANES))
    member.arena = worker.arena
    return member


def test_a_slice_that_its_owner_left_torn_is_not_waited_for_once_quiet_is_asked_for() -> None:
    """Only when all are quiet is it mended: whoever waited for it until then would wait for ever."""
    controls = Asked(lambda: dead.clear_undo(1))
    member = relaxed(controls)
    dead = Board(member.arena.section("board"), LANES, ROWS, len(member.space.layout.slices))
    dead.row = 1
    dead.begin_undo(2, 0)
    assert member.next_unit(COURSE) == (0, ALL)
    assert controls.rests == 1
    assert member.read == 0


def test_a_pass_that_is_just_being_begun_is_news_soon() -> None:
    """Its owner is further on in the script, and rightly so: it must not be taken for another way through it."""
    member = relaxed(Asked(lambda: None))
    assert member.next_unit(COURSE) == (0, ALL)
    assert not member.changed()
    seen: list[bool] = []
    words = member.pushes._words
    whole, lane = words[0], member.pushes._clock(0)
    member.pushes._words = Watched(words, lane, lambda: seen.append(member.pushes.beginning and member.changed()))
    member.pushes.begin(1, 5, 0)
    assert seen == [True] * LANES and words[0] == whole + 1
    member._marks = member._marked()
    assert not member.changed()


class Watched:
    """Words that tell when the clock of a lane is set."""

    def __init__(self, words: memoryview, lanes: int, told: Callable[[], None]) -> None:
        self._words, self._lanes, self._told = words, lanes, told

    def __getitem__(self, at: int | slice) -> int | memoryview:
        return self._words[at]

    def __setitem__(self, at: int, value: int) -> None:
        self._words[at] = value
        if self._lanes <= at < self._lanes + LANES * 8 and not value:
            self._told()


def test_a_run_that_is_to_end_begins_no_pass_any_more() -> None:
    """A member that is told later than others would find the clocks of another pass, and stop elsewhere than they."""
    member = relaxed(Asked(lambda: None))
    assert member.next_unit(COURSE) == (0, ALL)
    member.stop()
    member.install(0, Assignment([0], [0], [0] * LANES))
    assert member.next_unit(COURSE) is None, "nobody has pushed in this pass: it ends as it is"
    assert member.next_unit(Course(1, 5, COURSE.counts)) is None
    assert member.pushes.begun(0) and not member.pushes.begun(1)


def test_clocks_are_those_of_one_version() -> None:
    """Where two commit sets take turns, what was applied is overwritten by the commit set after next."""
    member = relaxed(Asked(lambda: None))
    assert member.next_unit(COURSE) == (0, ALL)
    read, seen = member.pushes.clocks, []

    def clocks(version: int, steps: int) -> Clocks:
        seen.append(version)
        if len(seen) == 1:  # another owner is faster than this look
            for index in range(len(member.space.layout.slices)):
                member.board.publish(index, 1)
        return read(version, steps)

    member.pushes.clocks = clocks
    member.committed()
    assert seen == [0, 1]


def test_a_pass_that_is_begun_during_a_look_is_seen() -> None:
    """Its owner is further on in the script by then: whoever went to wait without seeing why would say so."""
    controls = Asked(lambda: None)
    member = relaxed(controls)
    member.install(0, Assignment([0, 1], [0, 1], [0] * LANES, servers=[1]))  # another one owns
    member.pushes.begin(0, 5, 0)
    controls.looks, controls.wait = -9, lambda changed: None
    looked: list[bool] = []
    over = member.pushes.over

    def look(op: int) -> bool:
        found = over(op)
        if not found:  # just afterwards, by the owner
            member.pushes.begin(1, 5, 0)
        return found

    member.pushes.over = look
    member.before_wait = lambda: looked.append(member.changed())
    assert member.next_unit(COURSE) is None
    assert all(looked), "if it goes to wait at all, it sees why not to"


def test_a_pass_whose_beginning_was_cut_short_is_begun_anew() -> None:
    pushes = relaxed(Asked(lambda: None)).pushes
    pushes.begin(0, 5, 0)
    words = pushes._words
    for cut in range(1, 4):  # killed after so many stores
        before = bytes(words)
        pushes._words = Failing(words, cut)
        try:
            pushes.begin(1, 7, 0)
        except Killed:
            assert not pushes.begun(0) or cut == 1
        pushes._words = words
        pushes.begin(1, 7, 0)
        assert (pushes.base, pushes.total, pushes.begun(1)) == (5, 7, True)
        words.cast("B")[:] = before


class Killed(Exception):
    """In the middle of it."""


class Failing:
    """Words that take so many stores and no more."""

    def __init__(self, words: memoryview, stores: int) -> None:
        self._words, self._left = words, stores

    def __getitem__(self, at: int | slice) -> int | memoryview:
        return self._words[at]

    def __setitem__(self, at: int, value: int) -> None:
        if not self._left:
            raise Killed
        self._left -= 1
        self._words[at] = value
