"""The terminal sessions of the documentation, run and compared.

A `console` block has commands after `$ ` and what they print. Every line that is shown must be printed, in that order,
but numbers, hashes and times differ from machine to machine: only their places are compared. `...` stands for any
lines. Two hashes that are equal on the page must be equal here, and a process id that a page shows stands for the one
that was printed in its place. Where a page says so (`<!-- close: error -->`), numbers after that word are compared too.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import holdfast
from tests.markdown import PAGES, ROOT, blocks

pytestmark = pytest.mark.process

_HASH = r"\b[0-9a-f]{64}\b"
_NUMBER = r"\d[\d.]*[kMG%]?"
_TOKEN = re.compile(rf"{_HASH}|{_NUMBER}")
_BARS = re.compile(r"[▁▂▃▄▅▆▇█]+")
#: What is of this machine or this moment, and what stands for it when lines are compared.
_LOCAL = [(re.compile(r"^\S+(?=: running, generation)"), "DIR"), (re.compile(r", begun .*"), ", begun WHEN"),
          (re.compile(r"(?<=kernel    )[^:]+"), "KERNEL"), (re.compile(r"(?<=torch     ).*"), "VERSION"),
          # Workers that are late on a busy machine fail after the sentence about the first one was written.
          (re.compile(r"; worker \d+ the same(?=\.)"), "")]  # fmt: skip
_SECONDS = 60.0  # for one command
_CLOSE = 0.15  # by what part of it a number may differ from the page's, where numbers are compared


class Command(NamedTuple):
    """What is typed and what the page shows of its output."""

    text: str
    shown: list[str]
    close: str = ""  #: numbers after this word are close to the page's


class Session:
    """A shell of a reader, in a directory of its own, with `holdfast` and `python` on its path."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        commands = directory / "bin"
        commands.mkdir()
        for name, words in (("python", ""), ("holdfast", "-m holdfast.cli.main ")):
            script = commands / name
            script.write_text(f'#!/bin/sh\nexec "{sys.executable}" {words}"$@"\n')
            script.chmod(0o755)
        self._environment = {
            **os.environ, "PATH": f"{commands}:{os.environ['PATH']}",
            "PYTHONPATH": str(Path(holdfast.__file__).parents[1]),
        }  # fmt: skip
        self._meant: dict[str, str] = {}  #: hash or process id of the page -> the one here
        self._status = 0
        self._going: list[tuple[Command, subprocess.Popen[str]]] = []

    def run(self, command: Command) -> None:
        """Run one command to its end and compare, unless it shows that a tool is missing which is here."""
        missing = [re.search(r"(\w+) was not found on this machine", line) for line in command.shown]
        if any(found and shutil.which(found[1]) for found in missing):
            return
        text = re.sub(r"\d{4,}", lambda number: self._meant.get(number[0], number[0]), command.text)
        text = text.replace("$?", str(self._status))
        done = subprocess.run(
            text, shell=True, cwd=self._directory, env=self._environment, text=True, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=_SECONDS, check=False,
        )  # fmt: skip
        self._status = done.returncode
        self._compare(command, done.stdout)

    def start(self, command: Command) -> None:
        """Start a command that goes on, and return when its run has made a few steps."""
        child = subprocess.Popen(
            command.text, shell=True, cwd=self._directory, env=self._environment, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        self._going.append((command, child))
        where = re.search(r"--dir (\S+)", command.text)
        assert where is not None
        ask = f'holdfast status {where[1]} --json | grep -q \'"step": [1-9][0-9]\''
        until = time.monotonic() + _SECONDS
        shell = {"shell": True, "cwd": self._directory, "env": self._environment, "capture_output": True}
        while subprocess.run(ask, **shell, check=False).returncode:
            assert child.poll() is None, f"{command.text!r} has ended: {child.communicate()[0]}"
            assert time.monotonic() < until, f"{command.text!r} makes no step"

    def wait(self) -> None:
        """Wait for what goes on, and compare it."""
        while self._going:
            command, child = self._going[0]
            output, _ = child.communicate(timeout=_SECONDS)
            self._going.pop(0)
            self._compare(command, output, in_order=False)

    def close(self) -> None:
        """End what still goes on, after a failed comparison."""
        for _, child in self._going:
            os.killpg(child.pid, signal.SIGKILL)
            child.communicate()

    def _compare(self, command: Command, output: str, *, in_order: bool = True) -> None:
        """What is done to a run that goes on may be told in another order than it was done in: all of it takes time."""
        printed, at, used = output.splitlines(), 0, set[int]()
        for shown in command.shown:
            if shown == "...":
                continue
            left = range(at, len(printed)) if in_order else [i for i in range(len(printed)) if i not in used]
            found = next((i for i in left if _shape(printed[i]) == _shape(shown)), None)
            assert found is not None, f"$ {command.text}\nthe page shows:  {shown}\nwas printed:\n{output}"
            at = found + 1
            used.add(found)
            self._learn(shown, printed[found])
            for ours, theirs in zip(*(_numbers(line, command.close) for line in (shown, printed[found])), strict=True):
                assert abs(theirs - ours) <= _CLOSE * ours, f"{printed[found]!r}, where the page has {shown!r}"

    def _learn(self, shown: str, printed: str) -> None:
        for ours, theirs in zip(_TOKEN.findall(shown), _TOKEN.findall(printed), strict=False):
            if re.fullmatch(_HASH, ours):
                assert self._meant.setdefault(ours, theirs) == theirs, f"equal on the page, but not here: {printed}"
            elif re.fullmatch(r"\d{4,}", ours):
                self._meant[ours] = theirs


def _shape(line: str) -> str:
    """A line without its numbers, bars and runs of spaces. A progress line is compared by its beginning."""
    for pattern, stands in _LOCAL:
        line = pattern.sub(stands, line)
    if re.match(r"\s*step \d", line):
        return "step #"
    return " ".join(_TOKEN.sub("#", _BARS.sub("", line)).split())


def _numbers(line: str, word: str) -> list[float]:
    """The numbers after a word; none without one."""
    return [float(number) for number in re.findall(rf"\b{word} ([\d.]+\d)", line)] if word else []


def side(diff: str, sign: str) -> str:
    """The file before ("-") or after ("+") what a diff shows."""
    return "\n".join(line[1:] for line in diff.splitlines() if line[:1] in ("", " ", sign))


def commands(text: str, note: str = "") -> list[Command]:
    close = note.removeprefix("close: ") if note.startswith("close: ") else ""
    found: list[Command] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            found.append(Command(line[2:], [], close))
        elif line:
            found[-1].shown.append(line)
    return found


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    opened = Session(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    yield opened
    opened.close()


#: Two workers that fail at once fail together, where nobody else keeps one of them from it.
ALONE = ROOT / "docs" / "failures.md"
SESSIONS = [
    pytest.param(page, id=str(page.relative_to(ROOT)), marks=() if page == ALONE else pytest.mark.sharing)
    for page in PAGES
    if any(block.language == "console" for block in blocks(page))
]


@pytest.mark.parametrize("page", SESSIONS)
def test_sessions(page: Path, session: Session, tmp_path: Path) -> None:
    for block in blocks(page):
        if block.file:
            (tmp_path / block.file).write_text(block.text)
        elif block.language == "diff":
            (tmp_path / "train.py").write_text(side(block.text, "+"))
        elif block.language == "console":
            for command in commands(block.text, block.note):
                session.start(command) if block.note == "terminal 1" else session.run(command)
            if block.note == "terminal 2":
                session.wait()


@pytest.mark.sharing
def test_the_readme_adds_three_lines_and_a_loop() -> None:
    (diff,) = (block.text for block in blocks(ROOT / "README.md") if block.language == "diff")
    lines, backward = diff.splitlines(), "        F.cross_entropy(model(x), y).backward()"
    added = [line[1:] for line in lines if line.startswith("+")]
    assert added == [
        "import holdfast as hf", "run = hf.join()", "model, optimizer, loader = run.prepare(model, optimizer, loader)",
        "    for step in run.steps(loader):", "        for x, y in step:", f"    {backward}",
    ]  # fmt: skip
    assert [line[1:] for line in lines if line.startswith("-")] == ["    for x, y in loader:", backward]
    compile(side(diff, "-"), "before.py", "exec")
