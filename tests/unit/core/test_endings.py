"""What a worker shows of its endings, and the sentence where they are apart."""

from __future__ import annotations

from holdfast.core.endings import LEFT_OUT, SHOWN, SKIPPED, STEPPED, Ending, apart, newest, shown, word


def test_a_word_shows_the_newest_endings() -> None:
    said = 0
    for version in range(20):
        said = word(said, version, SKIPPED if version == 17 else STEPPED)
        assert newest(said) == version and said < 1 << 63
    assert shown(said) == {version: SKIPPED if version == 17 else STEPPED for version in range(20 - SHOWN, 20)}
    assert shown(word(said, 22, STEPPED)) == {22: STEPPED, 19: STEPPED, 18: STEPPED, 17: SKIPPED}
    assert shown(word(said, 99, STEPPED)) == {99: STEPPED} and shown(0) == {}


def test_a_number_that_has_no_room_does_not_spill() -> None:
    assert shown(word(word(0, 7, STEPPED), 8, STEPPED + 40)) == {8: 15, 7: STEPPED}


def test_who_has_ended_it_otherwise_is_said() -> None:
    several = {0: Ending(STEPPED, 12), 2: Ending(STEPPED, 12), 3: Ending(LEFT_OUT, 9), 4: Ending(SKIPPED, 9)}
    assert apart(7, several, "worker {}".format) == (
        "Step 7 was ended by optimizer.step() in worker 0 (line 12 of the script) and by scaler.step(), which left it "
        "out, in worker 3 (line 9 of the script). Decide it by what is the same in every worker: step.number, "
        "step.loss, .grad after the inner loop, a result of run.evaluate."
    )
    optimizers = {0: Ending(STEPPED), 1: Ending(STEPPED + 1)}
    assert apart(7, optimizers, "worker {}".format) == (
        "Step 7 was ended by the step of optimizer 0 in worker 0 and by the step of optimizer 1 in worker 1. Decide it "
        "by what is the same in every worker: step.number, step.loss, .grad after the inner loop, a result of "
        "run.evaluate."
    )
    assert apart(7, {0: Ending(STEPPED, 3), 1: Ending(STEPPED, 4)}, str) is None and apart(7, {}, str) is None
