"""A story is told once, and survives being written down."""

from __future__ import annotations

from holdfast.control.membership.roster import compact, names
from holdfast.control.story import Sentence, Story


def test_only_news_is_kept() -> None:
    story = Story()
    assert story.append(1.0, "Ticked", "all is well")
    assert not story.append(2.0, "Ticked", "all is well")
    assert story.append(3.0, "Ready", "all is well")
    assert [entry.now for entry in story] == [1.0, 3.0]
    assert story.since(1) == [Sentence(3.0, "Ready", "all is well")]


def test_json_lines() -> None:
    story = Story([Sentence(1.0, "Ready", 'worker 0 is "ready"'), Sentence(2.0, "Ticked", "zwölf\nZeilen")])
    data = story.encode()
    assert data.count(b"\n") == 2
    assert list(Story.decode(data)) == list(story)


def test_a_cut_off_line_is_left_out() -> None:
    data = Story([Sentence(1.0, "Ready", "a"), Sentence(2.0, "Ready", "b")]).encode()
    assert [entry.sentence for entry in Story.decode(data[:-3])] == ["a"]
    assert list(Story.decode(b"")) == []


def test_tail() -> None:
    story = Story(Sentence(float(n), "Ticked", f"number {n}") for n in range(20))
    assert story.tail(2) == "  18.000 s  number 18\n  19.000 s  number 19"


def test_names() -> None:
    assert names([]) == "nobody"
    assert names([4, 1]) == "workers 1 and 4"
    assert names([0, 1, 2, 3, 7]) == "workers 0-3, 7"
    assert compact([]) == ""
    assert compact([3]) == "3"
