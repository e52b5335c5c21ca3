"""What the audit trail of a run says (`--set audit=true`): which samples each committed unit used.

A machine that is killed takes the last lines of its workers along. There the scripts' own traces tell
(`harness.Trace`).
"""

from __future__ import annotations

from holdfast.observe.audit import audit, read
from tests.process.harness import Launch

__all__ = ["AUDITED", "each_sample_once", "samples_of_steps"]

AUDITED = ("--set", "audit=true")


def each_sample_once(run: Launch, samples: int, epochs: int) -> None:
    """Every sample of every pass was used in one committed unit, and counted once."""
    passes = audit(read(run.dir / "audit"), run.summary["steps"])
    assert [one.samples for one in passes] == [samples] * epochs, run.err
    for one in passes:
        assert not one.repeated and not one.contradictions, f"{one.told()}\n{run.err}"
    assert (run.summary["samples"], run.summary["samples_left_out"]) == (samples * epochs, 0)


def samples_of_steps(run: Launch) -> dict[int, list[int]]:
    """Step -> the samples that it was made of, each as often as it counts, by the script's trace.

    In a plain loop in `exact` the trail says which shares came; a worker without one, or a server, went through the
    turn with samples of the first lane. In other modes a unit that was tried again, alone or in another share, had the
    same samples.
    """
    lines = [line.split() for line in read(run.dir / "audit")]
    came = {int(words[1]): set(map(int, words[2:])) for words in lines if words[0] == "came"}
    shares: dict[int, dict[int, tuple[int, ...]]] = {step: {} for step in came}
    found: dict[int, list[int]] = {}
    for step, lane, numbers in run.trace.read().made:
        if step not in came:
            found[step] = sorted({*found.get(step, ()), *numbers})
        elif lane in came[step]:
            shares[step][lane] = max(numbers, shares[step].get(lane, ()), key=len)
    return found | {step: [number for ids in whose.values() for number in ids] for step, whose in shares.items()}
