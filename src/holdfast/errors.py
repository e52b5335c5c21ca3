"""Every error Holdfast raises, as one tree.

    HoldfastError
    ├── UsageError (ValueError)       you asked for something that cannot be      exit 2
    │   ├── ConfigError               one setting is wrong: field, value, source
    │   └── NotExact                  it could run, but not with the same bits
    ├── RunError                      a run that was going could not go on
    │   ├── ScriptFailed              your script raised, or left early           exit 1
    │   ├── BadUnit                   one piece of work fails wherever it runs    exit 3
    │   ├── BadRow                    a row of a data set that a model cannot do  exit 3
    │   ├── NonFinite                 a loss or gradient is NaN or infinite       exit 4
    │   ├── Hang                      no progress, and we can say where           exit 5
    │   ├── CrewLost                  workers die faster than they make progress  exit 6
    │   ├── OutOfSync                 two workers are at different places of the script  exit 9
    │   ├── NotKept                   a late worker lacks what others have in a variable  exit 13
    │   ├── Impure                    what was computed twice is not the same     exit 14
    │   └── Stopped                   this worker was told to end: not its fault
    ├── ResourceError                 disk, memory or descriptors are used up     exit 7
    ├── DirectoryBusy                 the run's directory belongs to another run  exit 8
    ├── NetworkError                  talking to another machine failed           exit 10
    │   ├── Unreachable               nothing listens there, or nobody answers    exit 10
    │   │   └── NobodyListens         there is a machine, and nothing listens     exit 10
    │   ├── NotHoldfast               something answers there that is not a run   exit 10
    │   └── FrameError                a peer sent bytes that are no frame         exit 10
    ├── StoreError                    the parameter store could not do it         exit 12
    │   ├── UnknownKey                a key that was never initialised            exit 12
    │   ├── Mismatch                  clients disagree about a shape or dtype     exit 12
    │   ├── HandlerFailed             a handler of yours raised in its server     exit 12
    │   ├── StoreTimeout              no answer before the deadline               exit 12
    │   └── ServerLost                a server is gone, and nobody replaces it    exit 12
    ├── CheckpointError               a checkpoint cannot be used, or written     exit 15
    │   ├── NotACheckpoint            there is something else, or nothing         exit 15
    │   ├── DamagedCheckpoint         its bytes are not those that were written   exit 15
    │   ├── NewerCheckpoint           a later version of Holdfast has written it  exit 15
    │   ├── UnreadableCheckpoint      the system does not let us read it          exit 15
    │   ├── OtherState                it is of another model than the script's    exit 15
    │   ├── NoWeights                 a file from which no weights can be taken   exit 15
    │   ├── OtherModel                its weights have nothing of the script's    exit 15
    │   └── CheckpointFailed          it could not be written; older ones stay    exit 15
    │       └── NoAtomicRename        its file system cannot rename a folder      exit 15
    ├── BadRequest                    what a client of an endpoint sent cannot be answered
    ├── ModelError                    a model on disk cannot be used, or made     exit 16
    │   ├── NotAModel                 there is something else, or nothing         exit 16
    │   ├── DamagedModel              its bytes are not those that were written   exit 16
    │   ├── NewerModel                a later version of Holdfast has written it  exit 16
    │   ├── UnreadableModel           the system does not let us read it          exit 16
    │   ├── NotLoaded                 it is whole, and cannot be loaded here      exit 16
    │   ├── NotExportable             it cannot be taken out of its script so     exit 16
    │   ├── OtherAnswers              what was exported answers another thing     exit 16
    │   └── ModelFailed               it could not be written; older ones stay    exit 16
    └── Refused                       a run will not have this machine            exit 11
        ├── WrongToken                it does not hold the run's token            exit 11
        ├── OtherVersion              it has another version of Holdfast          exit 11
        └── OtherRun                  it means another run                        exit 11

Every message says what happened, with its values, and then what to do. `exit_code` is what the
`holdfast` command returns, so scripts can tell the classes apart. Nothing here may be matched by
its text: catch the class.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


def listed(numbers: Sequence[int], most: int = 16) -> str:
    """Numbers, such as those of samples, as a sentence shows them: no more than `most`.

    >>> listed([4, 2]), listed(range(100, 120))[-25:]
    ('4, 2', '114, 115, ... (20 in all)')
    """
    return ", ".join(map(str, numbers[:most])) + (f", ... ({len(numbers)} in all)" if len(numbers) > most else "")


def brief(error: Exception) -> str:
    """What happened, without what to do about it: the first sentence, as a part of another one.

    >>> brief(ValueError("Nothing listens at 10.0.0.5:4000. Check the address."))
    'Nothing listens at 10.0.0.5:4000'
    """
    return str(error).partition(". ")[0].rstrip(".") or type(error).__name__


class HoldfastError(Exception):
    """Root of the tree. `exit_code` is the exit status of the `holdfast` command."""

    exit_code = 1


class UsageError(HoldfastError, ValueError):
    """Something was asked for that cannot be done as asked."""

    exit_code = 2


class ConfigError(UsageError):
    """One setting has a value that it cannot have.

    >>> str(ConfigError("lanes", 0, "must be 1 or more", source="--lanes", fix="Use --lanes 4."))
    'lanes = 0: must be 1 or more (set by --lanes). Use --lanes 4.'
    """

    def __init__(self, field: str, value: object, problem: str, *, source: str = "default", fix: str = "") -> None:
        self.field, self.value, self.source = field, value, source
        super().__init__(f"{field} = {value}: {problem} (set by {source}).{' ' + fix if fix else ''}")


class NotExact(UsageError):
    """It could run, but two crews would not get the same bits; so it is refused.

    >>> str(NotExact("LBFGS needs the whole gradient at once", "Use SGD, Adam or AdamW."))
    'This cannot be kept exact: LBFGS needs the whole gradient at once. Use SGD, Adam or AdamW.'
    """

    def __init__(self, why: str, fix: str) -> None:
        super().__init__(f"This cannot be kept exact: {why}. {fix}")


class RunError(HoldfastError):
    """A run that was going could not go on."""


class ScriptFailed(RunError):
    """The user's script raised an exception or left before its end."""

    exit_code = 1


class BadUnit(RunError):
    """One unit of work fails on every worker that tries it: bad data, or code that cannot take it."""

    exit_code = 3

    def __init__(self, step: int, lane: int, samples: list[int], attempts: str, cause: str) -> None:
        self.step, self.lane, self.samples = step, lane, samples
        which = f"Its samples are {listed(samples)}." if samples else "Its samples are not known."
        super().__init__(
            f"Unit (step {step}, lane {lane}) failed on {attempts}: {cause}. {which} Look at them first; the rest of "
            "the data got through."
        )


class BadRow(RunError):
    """A model fails on one row of a data set, or the row cannot be read.

    >>> str(BadRow(4711, "ValueError: no such word", "out.csv", 4608))[:60]
    'Row 4711 has no outputs: ValueError: no such word. The 4,608'
    """

    exit_code = 3

    def __init__(self, row: int, why: str, out: object, done: int) -> None:
        self.row, self.why = row, why
        super().__init__(
            f"Row {row} has no outputs: {why.rstrip('.')}. The {done:,} rows before its block are kept: look at it, "
            f"and run the same command with --bad skip to leave such rows out and list them in {out}.bad.jsonl."
        )


class NonFinite(RunError):
    """A loss or a gradient became NaN or infinite; the step was not committed."""

    exit_code = 4

    @classmethod
    def in_units(
        cls, what: str, units: Sequence[tuple[int, int]], samples_of: Callable[[int, int], Sequence[int]]
    ) -> NonFinite:
        """What is said where it may come from several units (step, lane).

        >>> str(NonFinite.in_units("A sum is not finite", [(7, 2), (7, 3)], lambda step, lane: [lane, 60]))[:99]
        'A sum is not finite. It was not applied. Its samples are, of step 7, lane 2: 2, 60; of step 7, lane'
        """
        told = [f"of step {step}, lane {lane}: {listed(samples_of(step, lane)) or 'none'}" for step, lane in units[:16]]
        told += [f"... ({len(units)} units in all)"] * (len(units) > 16)
        return cls(
            f"{what}. It was not applied. Its samples are, {'; '.join(told)}. Lower the learning rate, clip with "
            "run.clip_grad_norm_, or look at them; hf.join(finite=False) lets such numbers pass."
        )

    @classmethod
    def in_unit(cls, step: int, lane: int, what: str, samples: Sequence[int]) -> NonFinite:
        """What a worker says of the unit it has just computed.

        >>> str(NonFinite.in_unit(7, 2, "the loss is nan", [8, 60]))[:75]
        'Step 7, lane 2: the loss is nan. It was not applied. Its samples are 8, 60.'
        """
        return cls(
            f"Step {step}, lane {lane}: {what}. It was not applied. Its samples are {listed(samples)}. Look at them, "
            "lower the learning rate or clip; hf.join(finite=False) lets such numbers pass."
        )


class Hang(RunError):
    """A worker made no progress within the limit, and we know where it stands."""

    exit_code = 5


class CrewLost(RunError):
    """Workers were lost faster than they made progress; the restart budget is spent."""

    exit_code = 6


class OutOfSync(RunError):
    """Two workers are at different places of the script, so they would wait for each other for ever."""

    exit_code = 9


class NotKept(RunError):
    """A worker that came late lacks what the script has in a plain variable in the others.

    >>> str(NotKept("best", mine="inf", theirs="0.31", step=7))  # doctest: +ELLIPSIS
    "A worker that came late to step 7 has best = inf where the others' scripts have 0.31: ..."
    """

    exit_code = 13

    def __init__(self, name: str, *, mine: str, theirs: str, step: int) -> None:
        self.name, self.mine, self.theirs, self.step = name, mine, theirs, step
        path, _, frame = name.partition(" (")  # best (in main), self.best, counters['steps']
        words = re.findall(r"[^\W\d]\w*", path if frame else name)
        kept = words[-1] if words else "value"
        super().__init__(
            f"A worker that came late to step {step} has {name} = {mine} where the others' scripts have {theirs}: what "
            f"a script changes from turn to turn has to be kept for it. Use `kept = run.keep({kept}=...)` before the "
            f"loop, and kept.{kept} in place of {path}."
        )

    @classmethod
    def iterator(cls, name: str, step: int, otherwise: str) -> NotKept:
        """Something that counts along with the loop cannot be made to begin where the others' is."""
        error = cls.__new__(cls)
        error.name, error.mine, error.theirs, error.step = name, "", "", step
        RunError.__init__(
            error,
            f"A worker that came late to step {step} has missed turns that cannot be made up for in the {name} around "
            f"its loop: {otherwise}. Count with `for number, batch in enumerate(loader)` and use what follows from the "
            "number, and leave the loop with `break` on it or on run.step.",
        )
        return error

    @classmethod
    def gradient(cls, name: str, step: int) -> NotKept:
        """The script has set a gradient aside in one phase of a turn, and uses it in a later one."""
        error = cls.__new__(cls)
        error.name, error.mine, error.theirs, error.step = f"the gradient of {name}", "", "", step
        RunError.__init__(
            error,
            f"A worker that came late to step {step} needs, for the gradient of {name}, the gradient of an earlier "
            "phase of that turn, which is gone: what one phase takes over from another has to be kept for it. Use "
            "`kept = run.keep(gradients=None)` before the loop, and kept.gradients for what you set aside.",
        )
        return error


class Impure(RunError):
    """What was computed twice is not the same: a unit follows from more than parameters, samples and seed."""

    exit_code = 14

    @classmethod
    def twice(cls, worker: int, unit: tuple[int, int], what: str, *, again: bool | None) -> Impure:
        """A worker has computed a unit (step, lane) twice.

        `again` says whether two more computations, from one state, gave the same; None: that could not be tried.

        >>> str(Impure.twice(1, (3, 2), "the loss", again=True))[:99]
        'Worker 1 computed unit (step 3, lane 2) twice, and the second time it gave something else: the loss'
        """
        kept = (
            "Begin every batch with the same: reset what the script carries from batch to batch (hidden state, "
            "counters, caches) at the top of the loop's body, and draw random numbers from torch, numpy.random or "
            "random, which are seeded for each unit, not from a generator of your own"
        )
        drawn = (
            "Look for numbers that are drawn from the system or read from a clock, and for operations that "
            "torch.use_deterministic_algorithms(True) refuses"
        )
        state, chance = "state that is kept between batches", "an operation that is not deterministic"
        why, fix = {
            True: (f"The cause is {state}: two more tries from one and the same state gave equal results.", kept),
            False: (f"The cause is {chance}: two more tries from one and the same state differed as well.", drawn),
            None: (f"The cause is {state}, or {chance}.", f"{kept}. {drawn}"),
        }[again]
        step, lane = unit
        return cls(
            f"Worker {worker} computed unit (step {step}, lane {lane}) twice, and the second time it gave something "
            f"else: {what}. The step was not committed. {why} {fix}. Until that is so, another crew gives another "
            "result; hf.join(verify=0) or --verify off does not look."
        )

    @classmethod
    def carried(
        cls, worker: int, unit: tuple[int, int], phase: int, what: str, names: Mapping[str, int], *, sure: bool
    ) -> Impure:
        """A unit (step, lane) of a phase uses variables that an earlier phase has set: `names`, each with that phase.

        Not `sure`: some of them.

        >>> str(Impure.carried(0, (3, 2), 1, "the loss", {"z": 0}, sure=True))[:93]
        'Worker 0 computed unit (step 3, lane 2) twice in phase 1, the second time with other numbers '
        """
        step, lane = unit
        told, several = ", ".join(f"`{name}`" for name in names), len(names) > 1
        those = f"The variable{'s' * several} {told} {'were' if several else 'was'}"
        those = those if sure else f"Of the variables {told} one or more were"
        phases = " or ".join(map(str, sorted(set(names.values()))))
        return cls(
            f"Worker {worker} computed unit (step {step}, lane {lane}) twice in phase {phase}, the second time with "
            f"other numbers in {told}, and it gave something else: {what}. The step was not committed. {those} set in "
            f"the loop over the units of phase {phases} and used in phase {phase}: so a worker uses what the last unit "
            "before has left there, and in another crew that is another unit. Compute in each unit what it needs: draw "
            "it again (each unit has random numbers of its own), or recompute it from the batch; hf.join(verify=0) or "
            "--verify off does not look."
        )

    @classmethod
    def written(cls, worker: int, where: str, names: str, *, plain: bool = False) -> Impure:
        """A worker has found parameters written to that only the optimizer may change; in a `plain` loop or by steps.

        >>> str(Impure.written(0, "in unit (step 3, lane 2)", "fc.weight"))[:74]
        'Worker 0 found parameters changed in unit (step 3, lane 2) by the script: '
        """
        once_more, instead = (
            ("does it once more, so another crew has other weights", "Let the optimizer change them (weight_decay, lr)")
            if plain
            else (
                "would do it once more, and who computes a unit again begins with something else",
                "Let the optimizer change them, or change .grad after the loop over the units",
            )
        )
        return cls(
            f"Worker {worker} found parameters changed {where} by the script: {names}. The cause is a write past the "
            f"optimizer, as through .data: every worker {once_more}. {instead}; hf.join(verify=0) or --verify off does "
            "not look."
        )

    @classmethod
    def apart(
        cls, step: int, what: str, groups: Sequence[Sequence[int]], *, plain: bool = False, measured: bool = False
    ) -> Impure:
        """Workers came to a step with different things that must be the same; `groups` are those that agree.

        That was in a `plain` loop or in one by steps. A `measured` one is a number that a scheduler was stepped with.

        >>> str(Impure.apart(9, "what run.keep holds", [[0, 2], [1]]))[:81]
        'At the top of step 9 what run.keep holds differs between workers: that of 0, 2 is'
        """
        told = ", that of ".join(listed(group) for group in groups[1:])
        own = "the loss of its own share" if plain else "the loss of its own units"
        if measured:
            why = (
                f"So it moves apart in them, as it does with {own}. Step it with what is the same in all: what "
                "run.evaluate gives, run.loss, or step.loss of the loop by steps"
            )
        elif plain:
            why = (
                f"The cause is code that is not the same in every worker ({own} and what is counted from it, a clock, "
                "a random number of its own, run.lead), other numerics, or a broken machine. Use what is the same in "
                "all (run.loss, what run.evaluate gives), and look at the machine of who is alone"
            )
        else:
            why = (
                "The cause is code outside of the units that is not the same in every worker (a clock, a random "
                "number of its own, run.lead), other numerics, or a broken machine. Let every worker do the same "
                "there, and look at the machine of who is alone"
            )
        return cls(
            f"At the top of step {step} {what} differs between workers: that of {listed(groups[0])} is not that of "
            f"{told}. {why}; hf.join(verify=0) or --verify off does not look."
        )


class Stopped(RunError):
    """This worker was told to end because of something elsewhere; it is a victim, not the culprit."""


class ResourceError(HoldfastError):
    """Memory, disk or descriptors are used up."""

    exit_code = 7


class DirectoryBusy(HoldfastError):
    """The run's directory already belongs to another run."""

    exit_code = 8


class NetworkError(HoldfastError):
    """Talking to another machine failed; trying again may help."""

    exit_code = 10


class Unreachable(NetworkError):
    """Nothing listens at an address, or nobody there answers in time."""


class NobodyListens(Unreachable):
    """The machine at an address says that nothing listens there."""


class NotHoldfast(NetworkError):
    """Something answers at an address, but it is not a Holdfast run."""


class FrameError(NetworkError):
    """A peer sent bytes that are no frame, or a frame that has no business here; its connection is closed."""

    def __init__(self, what: str) -> None:
        self.what = what
        super().__init__(
            f"What came over the connection is no frame of this run: {what}. The connection is closed; if it happens "
            "again, look for a proxy or a broken network card between the two hosts."
        )


class StoreError(HoldfastError):
    """The parameter store could not do what it was asked for."""

    exit_code = 12


class UnknownKey(StoreError):
    """A key was pushed or pulled that was never initialised."""


class Mismatch(StoreError):
    """Two clients of the store disagree about the shape or the dtype of a key."""


class HandlerFailed(StoreError):
    """A handler raised; its push was not applied."""


class StoreTimeout(StoreError, TimeoutError):
    """A server of the store did not answer before the deadline; what was asked for may still happen."""


class ServerLost(StoreError):
    """A server of the store is gone and nobody takes over."""


class CheckpointError(HoldfastError):
    """A checkpoint cannot be used, or could not be written."""

    exit_code = 15


class NotACheckpoint(CheckpointError):
    """There is no checkpoint at a path.

    >>> str(NotACheckpoint("runs/a", "it has no manifest.json"))[:52]
    'runs/a is no checkpoint: it has no manifest.json. Gi'
    """

    def __init__(self, path: object, why: str) -> None:
        self.path, self.why = path, why
        super().__init__(
            f"{path} is no checkpoint: {why}. Give a run's directory, its folder `checkpoints`, or one checkpoint in "
            "it; `holdfast checkpoint list DIR` shows those of a run."
        )


class DamagedCheckpoint(CheckpointError):
    """The bytes of a checkpoint are not those that were written: of which file and, where that is known, tensor."""

    def __init__(self, path: object, file: str, what: str, *, tensor: str = "") -> None:
        self.path, self.file, self.what, self.tensor = path, file, what, tensor
        where = f"{file}, tensor {tensor}," if tensor else file
        super().__init__(
            f"The checkpoint {path} is damaged: {where} {what}. Use another one; `holdfast checkpoint verify DIR` says "
            "which are whole, and look at the disk: what was written here was read back and was right."
        )


class NewerCheckpoint(CheckpointError):
    """A checkpoint of a format that this version does not know yet."""

    def __init__(self, path: object, *, format: int, known: int, version: str) -> None:
        self.path, self.format, self.known, self.version = path, format, known, version
        super().__init__(
            f"The checkpoint {path} has format {format}, and this version of Holdfast reads formats up to {known}. It "
            f"was written by Holdfast {version}: install that version or a later one."
        )


class UnreadableCheckpoint(CheckpointError):
    """The system does not let us read a checkpoint; it may be whole."""

    def __init__(self, path: object, why: str) -> None:
        self.path, self.why = path, why
        super().__init__(f"{path} cannot be read: {why}. Look at its permissions, or use another checkpoint.")


class OtherState(CheckpointError):
    """A checkpoint is not of what the script has built."""

    def __init__(self, path: object, what: str) -> None:
        self.path, self.what = path, what
        super().__init__(
            f"The checkpoint {path} is not of what this script has built: {what}. Resume it with the script, the "
            "arguments and the version of Holdfast that have written it."
        )


class NoWeights(CheckpointError):
    """There is a file, and it is not whole, or none that weights are taken from.

    >>> str(NoWeights("a.safetensors", "its header is not JSON"))[:70]
    'No weights can be taken from a.safetensors: its header is not JSON. Gi'
    """

    def __init__(self, path: object, why: str, fix: str = "") -> None:
        self.path, self.why = path, why
        fix = fix or "Give a run's directory, a checkpoint, a folder of DCP, or a .safetensors file that is whole."
        super().__init__(f"No weights can be taken from {path}: {why}. {fix}")


class OtherModel(CheckpointError):
    """Weights were to be taken over from a file that has nothing in common with the script's models."""

    def __init__(self, path: object, what: str) -> None:
        self.path, self.what = path, what
        super().__init__(
            f"{path} has nothing in common with the models of this script: {what}. Give the weights of such a model, "
            "or rename them as the model's state_dict() names them."
        )


class CheckpointFailed(CheckpointError):
    """A checkpoint could not be written. What it had begun is removed, and the older ones are there."""

    def __init__(self, root: object, why: str, fix: str = "Make room there, or look at the disk.") -> None:
        self.root, self.why = root, why
        super().__init__(f"No checkpoint could be written to {root}: {why}. The older ones are as they were. {fix}")


class NoAtomicRename(CheckpointFailed):
    """The file system cannot rename a folder, so a kill could leave half a checkpoint under a good name."""

    def __init__(self, root: object, why: str) -> None:
        super().__init__(
            root, f"its file system cannot rename a folder ({why})",
            "Keep checkpoints on a local disk or on NFS, and have copies of them sent elsewhere.",
        )  # fmt: skip


class BadRequest(HoldfastError):
    """What a client of an endpoint sent cannot be answered; it is told so, with a status of HTTP.

    >>> str(BadRequest(400, "has 3 values; shape [2] has 2", "inputs[0].data"))
    'inputs[0].data: has 3 values; shape [2] has 2'
    """

    def __init__(self, status: int, message: str, field: str = "") -> None:
        self.status, self.message, self.field = status, message, field
        super().__init__(f"{field}: {message}" if field else message)
class ModelError(HoldfastError):
    """A model on disk cannot be used, or could not be made."""

    exit_code = 16


class NotAModel(ModelError):
    """There is no version of a model at a path.

    >>> str(NotAModel("models/a/3", "it has no model.json"))[:55]
    'models/a/3 is no model: it has no model.json. Give a fo'
    """

    def __init__(self, path: object, why: str) -> None:
        self.path, self.why = path, why
        super().__init__(
            f"{path} is no model: {why}. Give a folder that `holdfast export ... --to DIR` has made, or one version in "
            "it, as DIR/3."
        )


class DamagedModel(ModelError):
    """The bytes of a version are not those that were written."""

    def __init__(self, path: object, file: str, what: str) -> None:
        self.path, self.file, self.what = path, file, what
        super().__init__(
            f"The model {path} is damaged: {file} {what}. Use another version or export it again, and look at the "
            "disk: what was written here was read back and was right."
        )


class NewerModel(ModelError):
    """A model of a format that this version does not know yet."""

    def __init__(self, path: object, *, format: int, known: int, version: str) -> None:
        self.path, self.format, self.known, self.version = path, format, known, version
        super().__init__(
            f"The model {path} has format {format}, and this version of Holdfast reads formats up to {known}. It was "
            f"written by Holdfast {version}: install that version or a later one."
        )


class UnreadableModel(ModelError):
    """The system does not let us read a model; it may be whole."""

    def __init__(self, path: object, why: str) -> None:
        self.path, self.why = path, why
        super().__init__(f"{path} cannot be read: {why}. Look at its permissions, or use another version.")


class NotLoaded(ModelError):
    """A model is as it was written, and cannot be loaded here: a library is missing, or its own code fails."""

    def __init__(self, path: object, why: str, fix: str) -> None:
        self.path, self.why = path, why
        super().__init__(f"The model {path} is whole and cannot be loaded here: {why}. {fix}")


class NotExportable(ModelError):
    """A model cannot be exported in the way that was asked for."""

    def __init__(self, what: str, why: str, fix: str) -> None:
        self.what, self.why = what, why
        super().__init__(f"{what} cannot be exported: {why}. {fix}")


class OtherAnswers(ModelError):
    """What was exported and loaded again does not answer like the model that it was made from."""

    def __init__(self, what: str, why: str, fix: str) -> None:
        self.what, self.why = what, why
        super().__init__(f"{what}, exported and loaded again, does not answer as before: {why}. It was removed. {fix}")


class ModelFailed(ModelError):
    """A version of a model could not be written. What it had begun is removed, and the older ones are there."""

    def __init__(self, root: object, why: str, fix: str = "Make room there, or look at the disk.") -> None:
        self.root, self.why = root, why
        super().__init__(
            f"No version of a model could be written to {root}: {why}. The older ones are as they were. {fix}"
        )


class Refused(HoldfastError):
    """A run will not have this machine, and says why; trying again as it is will not help."""

    exit_code = 11


class WrongToken(Refused):
    """The token of this machine is not the token of the run at that address."""

    def __init__(self, address: str) -> None:
        self.address = address
        super().__init__(
            f"The run at {address} has another token. Copy the file `token` from the run's directory again (every run "
            "makes its own), and check the address."
        )


class OtherVersion(Refused):
    """The run is of another version of Holdfast, whose messages and bits may differ."""

    def __init__(self, address: str, *, theirs: str, ours: str) -> None:
        self.address, self.theirs, self.ours = address, theirs, ours
        super().__init__(
            f"The run at {address} is of Holdfast {theirs}, and this machine has {ours}. Install the same version on "
            f"both: pip install holdfast=={theirs}."
        )


class OtherRun(Refused):
    """Another run answers at the address, though it has the same token.

    >>> str(OtherRun("10.0.0.5:4000", theirs="b", ours="a"))
    'The run at 10.0.0.5:4000 is b, not a. Use the address that run a printed when it started.'
    """

    def __init__(self, address: str, *, theirs: str, ours: str) -> None:
        self.address, self.theirs, self.ours = address, theirs, ours
        super().__init__(
            f"The run at {address} is {theirs}, not {ours}. Use the address that run {ours} printed when it started."
        )


def by_name(name: str) -> type[HoldfastError] | None:
    """The class that is called so, as it was told by another process; None: it is none of ours.

    >>> by_name("BadUnit").exit_code, by_name("KeyError")
    (3, None)
    """
    found = globals().get(name)
    return found if isinstance(found, type) and issubclass(found, HoldfastError) else None
