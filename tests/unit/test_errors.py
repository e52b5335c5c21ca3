"""The tree of errors: classes, exit codes, and the texts they build. What raisers say is pinned in their tests."""

from __future__ import annotations

import inspect

import pytest

from holdfast import errors

EXIT_CODES = {
    "HoldfastError": 1,
    "UsageError": 2,
    "ConfigError": 2,
    "NotExact": 2,
    "RunError": 1,
    "ScriptFailed": 1,
    "BadUnit": 3,
    "BadRow": 3,
    "NonFinite": 4,
    "Hang": 5,
    "CrewLost": 6,
    "OutOfSync": 9,
    "NotKept": 13,
    "Impure": 14,
    "Stopped": 1,
    "ResourceError": 7,
    "DirectoryBusy": 8,
    "NetworkError": 10,
    "Unreachable": 10,
    "NobodyListens": 10,
    "NotHoldfast": 10,
    "FrameError": 10,
    "StoreError": 12,
    "UnknownKey": 12,
    "Mismatch": 12,
    "HandlerFailed": 12,
    "StoreTimeout": 12,
    "ServerLost": 12,
    "CheckpointError": 15,
    "NotACheckpoint": 15,
    "DamagedCheckpoint": 15,
    "NewerCheckpoint": 15,
    "UnreadableCheckpoint": 15,
    "OtherState": 15,
    "NoWeights": 15,
    "OtherModel": 15,
    "CheckpointFailed": 15,
    "NoAtomicRename": 15,
    "BadRequest": 1,
    "ModelError": 16,
    "NotAModel": 16,
    "DamagedModel": 16,
    "NewerModel": 16,
    "UnreadableModel": 16,
    "NotLoaded": 16,
    "NotExportable": 16,
    "OtherAnswers": 16,
    "ModelFailed": 16,
    "Refused": 11,
    "WrongToken": 11,
    "OtherVersion": 11,
    "OtherRun": 11,
}

PARENTS = {
    "UsageError": errors.HoldfastError,
    "ConfigError": errors.UsageError,
    "NotExact": errors.UsageError,
    "RunError": errors.HoldfastError,
    **dict.fromkeys(
        ("ScriptFailed", "BadUnit", "BadRow", "NonFinite", "Hang", "CrewLost", "OutOfSync", "NotKept", "Impure",
         "Stopped"),
        errors.RunError,
    ),
    "ResourceError": errors.HoldfastError,
    "DirectoryBusy": errors.HoldfastError,
    "NetworkError": errors.HoldfastError,
    **dict.fromkeys(("Unreachable", "NotHoldfast", "FrameError"), errors.NetworkError),
    "NobodyListens": errors.Unreachable,
    "StoreError": errors.HoldfastError,
    **dict.fromkeys(("UnknownKey", "Mismatch", "HandlerFailed", "StoreTimeout", "ServerLost"), errors.StoreError),
    "CheckpointError": errors.HoldfastError,
    **dict.fromkeys(
        (
            "NotACheckpoint", "DamagedCheckpoint", "NewerCheckpoint", "UnreadableCheckpoint", "OtherState", "NoWeights",
            "OtherModel", "CheckpointFailed",
        ),
        errors.CheckpointError,
    ),
    "NoAtomicRename": errors.CheckpointFailed,
    "BadRequest": errors.HoldfastError,
    "ModelError": errors.HoldfastError,
    **dict.fromkeys(
        (
            "NotAModel", "DamagedModel", "NewerModel", "UnreadableModel", "NotLoaded", "NotExportable", "OtherAnswers",
            "ModelFailed",
        ),
        errors.ModelError,
    ),
    "Refused": errors.HoldfastError,
    **dict.fromkeys(("WrongToken", "OtherVersion", "OtherRun"), errors.Refused),
}


def classes() -> dict[str, type[errors.HoldfastError]]:
    return {name: item for name, item in vars(errors).items() if inspect.isclass(item)}


def test_the_classes_and_their_exit_codes() -> None:
    assert {name: item.exit_code for name, item in classes().items()} == EXIT_CODES


def test_the_tree() -> None:
    assert {name: item.__bases__[0] for name, item in classes().items() if name in PARENTS} == PARENTS
    assert issubclass(errors.UsageError, ValueError)


def test_the_drawn_tree_names_every_class_with_its_exit_code() -> None:
    drawn = [line for line in (errors.__doc__ or "").splitlines() if "─" in line]
    names = {line.replace("│", "").replace("├──", "").replace("└──", "").split()[0]: line for line in drawn}
    assert set(names) == set(EXIT_CODES) - {"HoldfastError"}
    for name, line in names.items():
        if "exit" in line:
            assert line.rstrip().endswith(f"exit {EXIT_CODES[name]}")


@pytest.mark.parametrize("name", EXIT_CODES)
def test_every_class_says_when_it_is_raised(name: str) -> None:
    doc = inspect.getdoc(classes()[name]) or ""
    assert doc.splitlines()[0].endswith("."), f"{name} needs a sentence"


#: These build their text themselves; each has a test of its own below.
BUILT = {
    "ConfigError", "NotExact", "BadUnit", "BadRow", "FrameError", "WrongToken", "OtherVersion", "OtherRun", "NotKept",
    "NotACheckpoint", "DamagedCheckpoint", "NewerCheckpoint", "UnreadableCheckpoint", "CheckpointFailed",
    "NoAtomicRename", "OtherState", "NoWeights", "OtherModel", "BadRequest", "NotAModel", "DamagedModel", "NewerModel",
    "UnreadableModel", "NotLoaded", "NotExportable", "OtherAnswers", "ModelFailed",
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(set(EXIT_CODES) - BUILT))
def test_a_plain_error_says_what_it_was_given(name: str) -> None:
    text = "Worker 3 stands still. Look at its log."
    error = classes()[name](text)
    assert str(error) == text
    assert isinstance(error, errors.HoldfastError)


def test_config_error() -> None:
    error = errors.ConfigError("lanes", 0, "must be 1 or more", source="--lanes", fix="Use --lanes 4.")
    assert str(error) == "lanes = 0: must be 1 or more (set by --lanes). Use --lanes 4."
    assert (error.field, error.value, error.source) == ("lanes", 0, "--lanes")
    assert str(errors.ConfigError("seed", -1, "must be 0 or more")) == "seed = -1: must be 0 or more (set by default)."


def test_bad_request() -> None:
    error = errors.BadRequest(413, "has 9 bytes; at most 8 are taken", "body")
    assert str(error) == "body: has 9 bytes; at most 8 are taken"
    assert (error.status, error.field) == (413, "body")
    assert str(errors.BadRequest(404, "There is no model x. Ask for /v2/models.")) == (
        "There is no model x. Ask for /v2/models."
    )


def test_not_kept() -> None:
    error = errors.NotKept("best", mine="inf", theirs="0.31", step=7)
    assert str(error) == (
        "A worker that came late to step 7 has best = inf where the others' scripts have 0.31: what a script changes "
        "from turn to turn has to be kept for it. Use `kept = run.keep(best=...)` before the loop, and kept.best in "
        "place of best."
    )
    assert (error.name, error.mine, error.theirs, error.step) == ("best", "inf", "0.31", 7)
    elsewhere = str(errors.NotKept("state.best (in main)", mine="inf", theirs="0.31", step=7))
    assert elsewhere.endswith("Use `kept = run.keep(best=...)` before the loop, and kept.best in place of state.best.")


def test_not_kept_of_what_counts_along() -> None:
    error = errors.NotKept.iterator("islice", 7, "it would end the loop later than the others")
    assert str(error) == (
        "A worker that came late to step 7 has missed turns that cannot be made up for in the islice around its loop: "
        "it would end the loop later than the others. Count with `for number, batch in enumerate(loader)` and use what "
        "follows from the number, and leave the loop with `break` on it or on run.step."
    )
    assert (error.name, error.step, error.exit_code) == ("islice", 7, 13)


def test_impure_units() -> None:
    kept = (
        "Begin every batch with the same: reset what the script carries from batch to batch (hidden state, counters, "
        "caches) at the top of the loop's body, and draw random numbers from torch, numpy.random or random, which are "
        "seeded for each unit, not from a generator of your own"
    )
    drawn = (
        "Look for numbers that are drawn from the system or read from a clock, and for operations that "
        "torch.use_deterministic_algorithms(True) refuses"
    )
    causes = {
        True: "The cause is state that is kept between batches: two more tries from one and the same state gave equal "
              f"results. {kept}.",
        False: "The cause is an operation that is not deterministic: two more tries from one and the same state "
               f"differed as well. {drawn}.",
        None: "The cause is state that is kept between batches, or an operation that is not deterministic. "
              f"{kept}. {drawn}.",
    }  # fmt: skip
    for again, cause in causes.items():
        assert str(errors.Impure.twice(1, (3, 2), "the loss, the gradient of w", again=again)) == (
            "Worker 1 computed unit (step 3, lane 2) twice, and the second time it gave something else: the loss, the "
            f"gradient of w. The step was not committed. {cause} Until that is so, another crew gives another result; "
            "hf.join(verify=0) or --verify off does not look."
        )


def test_impure_parameters_and_workers() -> None:
    assert str(errors.Impure.written(1, "in unit (step 3, lane 2)", "fc.weight")) == (
        "Worker 1 found parameters changed in unit (step 3, lane 2) by the script: fc.weight. The cause is a write "
        "past the optimizer, as through .data: every worker would do it once more, and who computes a unit again "
        "begins with something else. Let the optimizer change them, or change .grad after the loop over the units; "
        "hf.join(verify=0) or --verify off does not look."
    )
    assert str(errors.Impure.apart(9, "run.keep(best=...)", [[0, 2], [1], [3]])) == (
        "At the top of step 9 run.keep(best=...) differs between workers: that of 0, 2 is not that of 1, that of 3. "
        "The cause is code outside of the units that is not the same in every worker (a clock, a random number of its "
        "own, run.lead), other numerics, or a broken machine. Let every worker do the same there, and look at the "
        "machine of who is alone; hf.join(verify=0) or --verify off does not look."
    )


def test_not_exact() -> None:
    error = errors.NotExact("LBFGS needs the whole gradient at once", "Use SGD, Adam or AdamW.")
    assert str(error) == "This cannot be kept exact: LBFGS needs the whole gradient at once. Use SGD, Adam or AdamW."


def test_bad_unit() -> None:
    error = errors.BadUnit(7, 2, [5, 9], "workers 0, 1", "killed by signal 11")
    assert str(error) == (
        "Unit (step 7, lane 2) failed on workers 0, 1: killed by signal 11. "
        "Its samples are 5, 9. Look at them first; the rest of the data got through."
    )
    assert (error.step, error.lane, error.samples) == (7, 2, [5, 9])
    many = str(errors.BadUnit(0, 0, list(range(40)), "worker 0", "KeyError: 3"))
    assert "Its samples are 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, ... (40 in all). Look" in many


def test_bad_row() -> None:
    error = errors.BadRow(4711, "ValueError: no such word.", "out.csv", 4608)
    assert str(error) == (
        "Row 4711 has no outputs: ValueError: no such word. The 4,608 rows before its block are kept: look at it, and "
        "run the same command with --bad skip to leave such rows out and list them in out.csv.bad.jsonl."
    )
    assert (error.row, error.why) == (4711, "ValueError: no such word.")


def test_frame_error() -> None:
    error = errors.FrameError("the checksum of its header is wrong")
    assert str(error) == (
        "What came over the connection is no frame of this run: the checksum of its header is wrong. The connection is "
        "closed; if it happens again, look for a proxy or a broken network card between the two hosts."
    )
    assert error.what == "the checksum of its header is wrong"


def test_wrong_token() -> None:
    error = errors.WrongToken("10.0.0.5:4000")
    assert str(error) == (
        "The run at 10.0.0.5:4000 has another token. Copy the file `token` from the run's directory again (every run "
        "makes its own), and check the address."
    )
    assert error.address == "10.0.0.5:4000"


def test_other_version() -> None:
    error = errors.OtherVersion("10.0.0.5:4000", theirs="0.2.0", ours="0.1.0")
    assert str(error) == (
        "The run at 10.0.0.5:4000 is of Holdfast 0.2.0, and this machine has 0.1.0. Install the same version on both: "
        "pip install holdfast==0.2.0."
    )
    assert (error.address, error.theirs, error.ours) == ("10.0.0.5:4000", "0.2.0", "0.1.0")


def test_other_run() -> None:
    error = errors.OtherRun("10.0.0.5:4000", theirs="b", ours="a")
    assert str(error) == "The run at 10.0.0.5:4000 is b, not a. Use the address that run a printed when it started."
    assert (error.address, error.theirs, error.ours) == ("10.0.0.5:4000", "b", "a")


def test_not_a_checkpoint() -> None:
    error = errors.NotACheckpoint("runs/a", "it has no manifest.json")
    assert str(error) == (
        "runs/a is no checkpoint: it has no manifest.json. Give a run's directory, its folder `checkpoints`, or one "
        "checkpoint in it; `holdfast checkpoint list DIR` shows those of a run."
    )
    assert (error.path, error.why) == ("runs/a", "it has no manifest.json")


def test_damaged_checkpoint() -> None:
    error = errors.DamagedCheckpoint("c/step-000000000120", "manifest.json", "is missing")
    assert str(error) == (
        "The checkpoint c/step-000000000120 is damaged: manifest.json is missing. Use another one; `holdfast "
        "checkpoint verify DIR` says which are whole, and look at the disk: what was written here was read back and "
        "was right."
    )
    assert (error.path, error.file, error.what) == ("c/step-000000000120", "manifest.json", "is missing")
    error = errors.DamagedCheckpoint("c", "state.safetensors", "has other bytes than were written", tensor="buffers")
    assert str(error).startswith(
        "The checkpoint c is damaged: state.safetensors, tensor buffers, has other bytes than were written. Use another"
    )
    assert error.tensor == "buffers"


def test_newer_checkpoint() -> None:
    error = errors.NewerCheckpoint("c", format=3, known=1, version="2.0.0")
    assert str(error) == (
        "The checkpoint c has format 3, and this version of Holdfast reads formats up to 1. It was written by Holdfast "
        "2.0.0: install that version or a later one."
    )
    assert (error.path, error.format, error.known, error.version) == ("c", 3, 1, "2.0.0")


def test_unreadable_checkpoint() -> None:
    error = errors.UnreadableCheckpoint("c/manifest.json", "Permission denied")
    assert str(error) == (
        "c/manifest.json cannot be read: Permission denied. Look at its permissions, or use another checkpoint."
    )
    assert (error.path, error.why) == ("c/manifest.json", "Permission denied")


def test_other_state() -> None:
    error = errors.OtherState("c", "ready (8 bytes there, 16 here)")
    assert str(error) == (
        "The checkpoint c is not of what this script has built: ready (8 bytes there, 16 here). Resume it with the "
        "script, the arguments and the version of Holdfast that have written it."
    )
    assert (error.path, error.what) == ("c", "ready (8 bytes there, 16 here)")


def test_checkpoint_failed() -> None:
    error = errors.CheckpointFailed("runs/a/checkpoints", "no space left on device", "Make room there.")
    assert str(error) == (
        "No checkpoint could be written to runs/a/checkpoints: no space left on device. The older ones are as they "
        "were. Make room there."
    )
    assert (error.root, error.why) == ("runs/a/checkpoints", "no space left on device")
    error = errors.NoAtomicRename("/mnt/bucket", "Operation not supported")
    assert str(error) == (
        "No checkpoint could be written to /mnt/bucket: its file system cannot rename a folder (Operation not "
        "supported). The older ones are as they were. Keep checkpoints on a local disk or on NFS, and have copies of "
        "them sent elsewhere."
    )


def test_models() -> None:
    assert str(errors.NotAModel("m/3", "it has no model.json")) == (
        "m/3 is no model: it has no model.json. Give a folder that `holdfast export ... --to DIR` has made, or one "
        "version in it, as DIR/3."
    )
    assert str(errors.DamagedModel("m/3", "program.json", "is missing")) == (
        "The model m/3 is damaged: program.json is missing. Use another version or export it again, and look at the "
        "disk: what was written here was read back and was right."
    )
    assert str(errors.NewerModel("m/3", format=2, known=1, version="4.0")) == (
        "The model m/3 has format 2, and this version of Holdfast reads formats up to 1. It was written by Holdfast "
        "4.0: install that version or a later one."
    )
    assert str(errors.UnreadableModel("m/3", "Permission denied")) == (
        "m/3 cannot be read: Permission denied. Look at its permissions, or use another version."
    )
    assert str(errors.NotLoaded("m/3", "skops is not installed", "Install it.")) == (
        "The model m/3 is whole and cannot be loaded here: skops is not installed. Install it."
    )
    assert str(errors.NotExportable("LeNet", "it has no weights", "Add some.")) == (
        "LeNet cannot be exported: it has no weights. Add some."
    )
    assert str(errors.OtherAnswers("lenet", "y differs", "Look.")) == (
        "lenet, exported and loaded again, does not answer as before: y differs. It was removed. Look."
    )
    assert str(errors.ModelFailed("m", "no space left on device")) == (
        "No version of a model could be written to m: no space left on device. The older ones are as they were. Make "
        "room there, or look at the disk."
    )
