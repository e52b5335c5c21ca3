"""How easy is the code to enter? Prints a table of counts: `python tools/rooms.py [--json] [--no-trace]`.

Counted: lines of src; words on the vocabulary page; class and module names that are used more than once; the largest
folder; and the files of Holdfast that a step on one host, a step on two hosts and a `kill -9` of a worker pass through.
Those are traced, not guessed: a small run is started with a profile hook in every process, which notes the file of each
function that is called while a flag is set. The script sets the flag for two steps; for the kill it is set until the
worker that replaces the killed one is a member.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

ROOT = Path(__file__).resolve().parent.parent
SRC = ROOT / "src" / "holdfast"
#: Seconds that a traced run may take. The hook makes everything several times slower.
PATIENCE = 120.0
#: A step is traced several times: what does not come in every window is periodic work that fell into one.
FIRST_STEP, EVERY, WINDOWS = 8, 3, 6

#: Loaded by every process that Python starts in a traced run.
HOOK = """
import mmap, os, sys, threading
_flag = mmap.mmap(os.open(os.environ["ROOMS_FLAG"], os.O_RDWR), 1)
_seen, _out = set(), os.environ["ROOMS_OUT"]

def _note(frame, event, argument):
    window = _flag[0]
    if event == "call" and window:
        name = frame.f_code.co_filename
        if "/holdfast/" in name and (os.getpid(), window, name) not in _seen:
            _seen.add((os.getpid(), window, name))
            out = os.open(_out, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            os.write(out, b"%d %s\\n" % (window, name.encode()))
            os.close(out)

threading.setprofile(_note)
sys.setprofile(_note)
"""
SCRIPT = f"""
import mmap, os, sys, time
import torch, holdfast as hf
from pathlib import Path
step_traced = os.environ.get("ROOMS_STEP") == "1"
flag = mmap.mmap(os.open(os.environ["ROOMS_FLAG"], os.O_RDWR), 1)
torch.manual_seed(0)
run = hf.join(lanes=4)
x = torch.randn(4096, 16)
data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
model = torch.nn.Linear(16, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = torch.utils.data.DataLoader(data, batch_size=32)
model, optimizer, loader = run.prepare(model, optimizer, loader)
for epoch in run.epochs(1 if step_traced else 1000):
    for a, b in loader:
        if step_traced and run.lead:
            since = run.step - {FIRST_STEP}
            traced = since >= 0 and since % {EVERY} < 2 and since // {EVERY} < {WINDOWS}  # a step and its neighbour
            flag[0] = since // {EVERY} + 1 if traced else 0
        torch.nn.functional.mse_loss(model(a), b).backward()
        optimizer.step()
        optimizer.zero_grad()
        if not step_traced:
            time.sleep(0.002)
"""


def lines() -> int:
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in SRC.rglob("*.py"))


def words() -> int:
    page = (ROOT / "docs" / "vocabulary.md").read_text(encoding="utf-8")
    return sum(line.split("|")[1].count("**") // 2 for line in page.splitlines() if line.startswith("| **"))


def repeated() -> tuple[list[str], list[str]]:
    """Names of classes and of modules that stand in more than one place."""
    classes: dict[str, set[Path]] = defaultdict(set)
    modules = Counter(path.stem for path in SRC.rglob("*.py") if path.stem != "__init__")
    for path in SRC.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                classes[node.name].add(path)
    return sorted(name for name, where in classes.items() if len(where) > 1), \
        sorted(name for name, count in modules.items() if count > 1)  # fmt: skip


def largest() -> tuple[str, int]:
    folders = Counter(path.parent for path in SRC.rglob("*.py") if path.stem != "__init__")
    folder, count = folders.most_common(1)[0]
    return str(folder.relative_to(SRC)), count


class Traced:
    """A small run whose processes note the files they pass through while the flag is set. Leaving the block ends it."""

    def __init__(self, place: Path, *options: str, step: bool) -> None:
        self._flag, self._out, self.dir = place / "flag", place / "files", place / "run"
        (place / "sitecustomize.py").write_text(HOOK)
        (place / "script.py").write_text(SCRIPT)
        self._flag.write_bytes(b"\0")
        self._environment = {
            **os.environ, "PYTHONPATH": f"{place}{os.pathsep}{SRC.parent}", "ROOMS_FLAG": str(self._flag),
            "ROOMS_OUT": str(self._out), "ROOMS_STEP": str(int(step)),
        }  # fmt: skip
        self._processes = [self._started("run", "--dir", str(self.dir), *options, str(place / "script.py"))]

    def __enter__(self) -> Traced:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()  # its children die with it
            process.wait()

    def _started(self, *words: str) -> subprocess.Popen[bytes]:
        quiet = subprocess.DEVNULL
        command = [sys.executable, "-m", "holdfast.cli.main", *words]
        return subprocess.Popen(
            command, env=self._environment, cwd=self.dir.parent, stdin=quiet, stdout=quiet, stderr=quiet
        )

    def join(self) -> None:
        """Let a second host in, on this machine."""
        address = self.until(lambda: _text(self.dir / "address"), "to listen")
        self._processes.append(
            self._started("join", address, "--token-file", str(self.dir / "token"), "--workers", "1")
        )

    def end(self) -> None:
        """Wait until the run has ended."""
        self.until(lambda: (self.dir / "summary.json").exists(), "to its end")

    def members(self) -> list[int]:
        """Process ids of the workers that are members."""
        command = [sys.executable, "-m", "holdfast.cli.main", "status", str(self.dir), "--json"]
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
        workers = json.loads(answer.stdout)["workers"] if answer.returncode == 0 else []
        return [worker["pid"] for worker in workers if worker["lanes"] and worker["state"] != "lost"]

    def trace(self, on: bool) -> None:
        with open(self._flag, "r+b") as flag:  # in place: others have it mapped
            flag.write(bytes([on]))

    def until(self, met: Callable[[], T], where: str) -> T:
        end = time.monotonic() + PATIENCE
        while not (value := met()):
            if time.monotonic() > end:
                raise TimeoutError(f"a traced run did not get {where} within {PATIENCE:.0f} s")
            if self._processes[0].poll() not in (None, 0):
                raise RuntimeError(f"a traced run ended with status {self._processes[0].returncode}")
            time.sleep(0.1)
        return value

    def files(self) -> list[str]:
        """The files of Holdfast that were passed in every window."""
        windows: dict[str, set[str]] = defaultdict(set)
        for line in self._out.read_text().splitlines():
            window, name = line.split(" ", 1)
            windows[window].add(str(Path(name).relative_to(SRC)))
        return sorted(set.intersection(*windows.values()))


def _text(path: Path) -> str:
    return path.read_text().strip() if path.exists() else ""


def walks() -> dict[str, list[str]]:
    """walk -> the files passed."""
    found: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory() as place, Traced(Path(place), "--workers", "2", step=True) as run:
        run.end()
        found["a step on one host"] = run.files()
    with tempfile.TemporaryDirectory() as place:
        options = ("--workers", "1", "--hosts", "2", "--listen", "127.0.0.1:0")
        with Traced(Path(place), *options, step=True) as run:
            run.join()
            run.end()
            found["a step on two hosts"] = run.files()
    with tempfile.TemporaryDirectory() as place, Traced(Path(place), "--workers", "2", step=False) as run:
        before = run.until(lambda: len(now := run.members()) == 2 and now, "to two members")
        assert before
        run.trace(True)
        os.kill(before[1], signal.SIGKILL)
        run.until(lambda: len(now := run.members()) == 2 and before[1] not in now, "back to two members")
        run.trace(False)
        found["kill -9 of a worker"] = run.files()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="How easy is the code to enter?")
    parser.add_argument("--json", action="store_true", help="all of it, with names and files, as JSON")
    parser.add_argument("--no-trace", action="store_true", help="start no runs")
    options = parser.parse_args()
    classes, modules = repeated()
    folder, size = largest()
    table: dict[str, object] = {
        "lines of src": lines(), "words on the vocabulary page": words(), "class names used more than once": classes,
        "module names used more than once": modules, f"modules in the largest folder ({folder})": size,
    }  # fmt: skip
    if not options.no_trace:
        table.update({f"files passed by {walk}": files for walk, files in walks().items()})
    if options.json:
        print(json.dumps(table, indent=2))
        return
    for what, value in table.items():
        print(f"{len(value) if isinstance(value, list) else value:>7}  {what}")


if __name__ == "__main__":
    main()
