"""The table of sections: every section of every arena has a family, and what is kept of it follows from that."""

from __future__ import annotations

import pytest

from holdfast.core.sync.modes import parse
from holdfast.dataplane.memory import sections as table
from holdfast.dataplane.memory.sections import TABLE, Life, Measures, ModeRoom, family, lay_out, lay_out_mode, passing

STATE = {"state/exp_avg/float32": 80, "scalar/step/float32": 8, "ready": 2}
ROOM = ModeRoom(2, {"float32": 80, "float64": 16}, 3, True, 96, {"ready": 2, "undo": 64, "state/momentum/float32": 80})
ALL = Measures(ROOM, 4, 3, 1, 64, STATE, 100, fixed=(12, 0), kept=512)


@pytest.mark.parametrize("mode", ["exact", "async", "bounded:2", "local:4"])
def test_every_section_is_found_in_the_table_again(mode: str) -> None:
    spans = lay_out(ALL, parse(mode)).spans
    for name in spans:
        one = family(name)
        assert name in one.sizes(ALL), f"{name} is not of the family {one.name}"
        assert spans[name][1] == one.sizes(ALL)[name]
    with pytest.raises(KeyError):
        family("slots/0/float32")


def test_a_mode_has_its_own_sections_and_nothing_that_outlives_it() -> None:
    exact, relaxed = lay_out(ALL, parse("exact")).spans, lay_out(ALL, parse("async")).spans
    more = [name for name in relaxed if name not in exact]
    assert more == list(lay_out_mode(ROOM, parse("async")).spans) and all(map(passing, more))
    assert not any(map(passing, exact)) and not lay_out_mode(ROOM, parse("exact")).spans
    assert {"read/0/float32", "push/1/float64", "pushes"} <= set(more)
    rounds = lay_out_mode(ROOM, parse("local:4")).spans
    assert {"inner/since", "inner/1/1", "outer/undo", "outer/state/momentum/float32"} <= set(rounds)
    assert not any(name.startswith("read/") for name in rounds), "with rounds nothing is compensated"


def test_what_is_durable() -> None:
    lives = {one.name: one.life for one in TABLE}
    assert not lives["undo"].durable and not lives["outer/undo"].durable and not lives["pushes"].durable
    for name in ("parameters/DTYPE", "state/KEY/DTYPE", "buffers", "settings", "kept", "outer/KEY", "inner/since"):
        assert lives[name].durable
    assert family("outer/undo").life is Life.STEP and family("outer/ready").life is Life.OUTER
    assert len({one.name for one in TABLE}) == len(TABLE)


def test_each_family_says_who_writes_it_and_what_marks_it_as_whole() -> None:
    for one in TABLE:
        assert one.writer and one.whole, one.name
        assert one.mode in ("", "relaxed", "compensated", "rounds"), one.name
    assert table.of_life(["slot/0/float32", "settings", "ready"], Life.SCRIPT, Life.OWNERS) == ["settings", "ready"]
