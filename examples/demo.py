"""The demo: two workers train LeNet on Fashion-MNIST, one of them is killed halfway, and nothing changes.

    make demo                                     or: python examples/demo.py [--data digits] [--epochs N]

1. `holdfast run` trains on two workers, live in your terminal.
2. About halfway one worker is killed with SIGKILL. Somebody else takes over its lanes.
3. The same training runs again on one worker that nobody disturbs.
4. The weights of both are compared, byte for byte. The exit status says whether they are the same.
5. `holdfast serve` answers one request with the model that was trained.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from holdfast.control.protocol.requests import Status
from holdfast.control.shell.control_client import ask
from holdfast.data.sources import dataset
from holdfast.errors import HoldfastError

SCRIPT = os.path.relpath(Path(__file__).with_name("fashion_mnist.py"))
EPOCHS = {"fashion-mnist": 3, "digits": 20}
DIFFERENT = 1  # exit status
Child = subprocess.Popen[bytes]


def main() -> int:
    parser = argparse.ArgumentParser(description="Train on two workers, kill one, compare with an undisturbed run.")
    parser.add_argument("--data", choices=sorted(EPOCHS), help="default: fashion-mnist if it can be had")
    parser.add_argument("--epochs", type=int, help="default: enough for the kill to be seen")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))

    began = time.monotonic()
    data = args.data or available()
    script = [SCRIPT, "--data", data, "--epochs", str(args.epochs or EPOCHS[data])]
    base = Path("runs", time.strftime("demo-%Y%m%d-%H%M%S"))
    crew, alone = base.with_name(base.name + "-two-workers"), base.with_name(base.name + "-one-worker")

    title(f"1. LeNet on {data}, two workers; one of them will be killed halfway")
    with holdfast_run(crew, 2, script) as child:
        kill_halfway(child, crew)
    disturbed = summary(crew)

    title("2. The same on one worker, undisturbed")
    with holdfast_run(alone, 1, script, quiet=True) as child:
        for status in watched(child, alone):
            live(status["progress"])
        live("")
    undisturbed = summary(alone)

    title("3. The results")
    report("two workers, one killed", crew, disturbed)
    report("one worker, undisturbed", alone, undisturbed)
    same = disturbed["weights_sha256"] == undisturbed["weights_sha256"] is not None
    print("\nThe weights are " + ("the same, byte for byte." if same else "DIFFERENT: a bug, please report it."))
    if not disturbed["workers_lost"]:
        print("But no worker was killed: the run was over before that. Use more --epochs.")

    title("4. One prediction from the model of the first run")
    right = predict_one(crew, data)
    print(f"\nThe whole demo took {time.monotonic() - began:.0f} s.")
    print(f"What was decided, and why: {command()} explain {crew}")
    return 0 if same and right and disturbed["workers_lost"] else DIFFERENT


def available() -> str:
    """Fashion-MNIST where it can be had, else the digits that ship with the package; says which and why."""
    try:
        for split in ("train", "test"):
            dataset("fashion-mnist", split)
    except HoldfastError as error:
        print(f"{error}\n\nThe demo goes on with digits: a small data set, the same promise.", flush=True)
        return "digits"
    return "fashion-mnist"


# ---------------------------------------------------------------- one run


@contextmanager
def holdfast_run(directory: Path, workers: int, script: list[str], *, quiet: bool = False) -> Iterator[Child]:
    """`holdfast run` as a child on this terminal. Leaves the demo if the run does not end well."""
    options = ["run", "--workers", str(workers), "--dir", str(directory), *script]
    print(f"$ holdfast {' '.join(options)}", flush=True)
    where = subprocess.DEVNULL if quiet else None
    child = subprocess.Popen(
        [sys.executable, "-m", "holdfast.cli.main", *options], stdout=where, stderr=subprocess.PIPE if quiet else None
    )
    try:
        yield child
        _, said = child.communicate()
    except KeyboardInterrupt:  # the child heard Ctrl-C as well and ends its run; a second one is for the child alone
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        live("")
        child.communicate()
        sys.exit(child.returncode)
    except BaseException:
        child.terminate()
        child.wait()
        raise
    if child.returncode:
        print((said or b"").decode(errors="replace"), end="")
        print(f"The demo ends here, because `holdfast run` ended with status {child.returncode}.")
        sys.exit(child.returncode)


def watched(child: Child, directory: Path) -> Iterator[dict[str, Any]]:
    """The status of a going run, four times a second, until it ends."""
    while child.poll() is None:
        try:
            yield ask(directory, Status())
        except HoldfastError:
            pass  # it does not answer: not yet, or not any more
        time.sleep(0.25)


def kill_halfway(child: Child, directory: Path) -> None:
    """Kill the last worker of the crew as soon as half of the steps are done."""
    for status in watched(child, directory):
        if status["total_steps"] and status["step"] >= status["total_steps"] // 2:
            victim = [worker for worker in status["workers"] if worker["state"] == "member"][-1]
            os.kill(victim["pid"], signal.SIGKILL)
            live("")
            who, step = victim["worker"], status["step"]
            print(f">>> demo: kill -9 {victim['pid']}   (worker {who}, at step {step})", flush=True)
            return


# ---------------------------------------------------------------- the endpoint


def predict_one(run: Path, data: str) -> bool:
    """Serve a run's model, send it the first test image, print the answer; whether there was one of the right kind."""
    try:
        import httptools  # noqa: F401
    except ImportError:
        print("This part needs pip install 'holdfast[serve]'; it is left out.")
        return True
    from fashion_mnist import load  # beside this script; the images as it has trained on them

    test = load(data, "test")
    image, truth = test[0]
    directory = Path(f"{run}-served")
    options = ["serve", str(run), "--name", "demo", "--dir", str(directory)]
    print(f"$ holdfast {' '.join(options)}", flush=True)
    child = subprocess.Popen([sys.executable, "-m", "holdfast.cli.main", *options])
    try:
        addresses = directory / "addresses.json"
        while not addresses.exists():
            if child.poll() is not None:
                return False
            time.sleep(0.05)
        url = json.loads(addresses.read_text())["http"] + "/predict"
        print(f"$ curl -d '[[[0.0, ...]]]' {url}", flush=True)
        began = time.monotonic()
        with urllib.request.urlopen(url, json.dumps(image.tolist()).encode()) as answer:
            told = json.load(answer)
        took = 1000 * (time.monotonic() - began)
        scores = next(iter(told["outputs"].values()))
        best = max(range(len(scores)), key=scores.__getitem__)
        said, right = test.classes[best], test.classes[int(truth)]
        print(f"the answer of version {told['version']}, after {took:.1f} ms: {said} (it is {right})")
        return len(scores) == len(test.classes)
    finally:
        child.terminate()
        child.wait()


# ---------------------------------------------------------------- what people see


def summary(directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((directory / "summary.json").read_text())
    return found


def report(what: str, directory: Path, found: dict[str, Any]) -> None:
    lost = f", {found['workers_lost']} lost" if found["workers_lost"] else ""
    print(f"{what}: {found['steps']} steps in {found['seconds']:.0f} s{lost}")
    print(f"  test accuracy   {accuracy(directory)}")
    print(f"  weights_sha256  {found['weights_sha256']}")


def accuracy(directory: Path) -> str:
    """The last one that a lead worker printed; the lead may have been another worker before."""
    said = "\n".join(path.read_text() for path in (directory / "logs").glob("worker-*.log"))
    found: list[tuple[str, str]] = re.findall(r"epoch (\d+): test accuracy ([\d.]+)", said)
    return max(found, key=lambda line: int(line[0]))[1]


def command() -> str:
    """How to call `holdfast` here, so that what is printed can be pasted."""
    if shutil.which("holdfast"):
        return "holdfast"
    beside = Path(sys.executable).with_name("holdfast")
    return os.path.relpath(beside) if beside.exists() else "python -m holdfast.cli.main"


def title(text: str) -> None:
    print(f"\n=== {text}", flush=True)


def live(text: str) -> None:
    """A line that the next one replaces; nothing where nobody looks."""
    if sys.stdout.isatty():
        print(f"\r\x1b[K{text[:os.get_terminal_size().columns - 1]}", end="", flush=True)


if __name__ == "__main__":
    sys.exit(main())
