from __future__ import annotations

import io
from pathlib import Path

from holdfast.observe.screen import Screen, Tail


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Broken(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError


def test_a_terminal_has_one_rewritten_line_below_the_story() -> None:
    terminal, output = Terminal(), io.StringIO()
    screen = Screen(terminal, output)
    screen.progress("step 1", 0.0)
    screen.progress("step 2", 0.1)
    screen.say("worker 1 lost")
    screen.echo("epoch 1")
    screen.end()
    clear = "\r\x1b[K"
    assert terminal.getvalue() == (
        f"{clear}step 1{clear}step 2{clear}worker 1 lost\nstep 2{clear}step 2\n"
    )
    assert output.getvalue() == "epoch 1\n"


def test_a_long_line_is_cut_to_the_terminal() -> None:
    terminal = Terminal()
    Screen(terminal, terminal).progress("x" * 500, 0.0)
    assert terminal.getvalue() == "\r\x1b[K" + "x" * 79


def test_elsewhere_a_plain_line_comes_every_few_seconds() -> None:
    news = io.StringIO()
    screen = Screen(news, news)
    for tick in range(120):
        screen.progress(f"step {tick}", tick / 10)
    screen.end()
    assert news.getvalue() == "step 25\nstep 75\n"


def test_nobody_looking_is_no_reason_to_stop() -> None:
    screen = Screen(Broken(), Broken())
    screen.say("one")
    screen.echo("two")
    screen.progress("three", 99.0)


def test_a_tail_gives_whole_lines(tmp_path: Path) -> None:
    log = tmp_path / "log"
    tail = Tail(log)
    assert tail.lines() == []
    log.write_bytes(b"one\ntw")
    assert tail.lines() == ["one"]
    with log.open("ab") as file:
        file.write(b"o\nthr\xffee")
    assert tail.lines() == ["two"]
    late = Tail(log, from_end=True)
    assert tail.lines(last=True) == ["thr\ufffdee"]
    assert late.lines(last=True) == []
