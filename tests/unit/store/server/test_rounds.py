"""Who has arrived."""

from __future__ import annotations

from holdfast.store.server.rounds import Rounds


def test_a_round_is_over_when_all_have_arrived() -> None:
    rounds = Rounds(done=4)
    assert not rounds.arrive("late", 4)  # its round is over
    assert rounds.arrive("a", 5) and rounds.arrive("a", 5) and not rounds.over(2)
    rounds.lose("a")
    assert rounds.arrive("b", 5) and not rounds.over(2)
    assert rounds.arrive("a", 5) and rounds.over(2)
    assert rounds.here == ["b", "a"]
    assert rounds.close() == 5 and rounds.here == []
