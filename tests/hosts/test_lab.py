"""The lab does what it says: hosts reach each other, rates hold, a cut is silent, and nothing is left over."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hosts.lab import MARK, Lab, NoLab, payload, remains
from tests.process.harness import alive, until

pytestmark = pytest.mark.process

TALK = Path(__file__).parent / "talk.py"
ROOT = Path(__file__).resolve().parents[2]
ESTABLISHED, LISTENING = "01", "0A"  # in /proc/net/tcp


class Talk:
    """A going `talk.py` on a host, and the lines it has printed."""

    def __init__(self, lab: Lab, host: int, *words: object) -> None:
        self.process = lab.run(host, [sys.executable, TALK, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert self.process.stdout
        os.set_blocking(self.process.stdout.fileno(), False)
        self._text = b""

    def lines(self) -> list[str]:
        """Whole lines, so far."""
        assert self.process.stdout
        self._text += self.process.stdout.read() or b""
        return self._text.decode().split("\n")[:-1]

    def port(self) -> int:
        """Where it listens."""
        return int(until(self.lines, "the listener's port")[0])

    def output(self) -> str:
        """The last line that it printed before its end."""
        assert self.process.wait(20.0) == 0, self.lines()
        return self.lines()[-1]


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with Lab(3) as made:
        yield made
    assert not remains(made.name)


@pytest.fixture
def whole(lab: Lab) -> Iterator[Lab]:
    """The lab, and afterwards again as it was."""
    yield lab
    for host in range(3):
        lab.kill_all(host)
        lab.rate(host, None)
        lab.heal(host)


def test_hosts_reach_each_other_by_ipv4_and_ipv6(whole: Lab) -> None:
    for family in ("address", "address6"):
        there = getattr(whole.hosts[2], family)
        listener = Talk(whole, 2, "listen", there)
        sent = Talk(whole, 0, "send", there, listener.port(), 0.05).output()
        until(lambda seen=listener: seen.lines()[-1].endswith(" end"), "all that was sent")
        assert listener.lines()[-1].split()[0] == sent and int(sent) > 0


def test_hosts_have_names_and_see_nothing_of_this_machine(whole: Lab) -> None:
    told = said(whole, 1, "hostname; getent ahosts host2; ls /sys/class/net; ip -o link").splitlines()
    assert told[0] == "host1" and told[-4:-2] == ["eth0", "lo"] and len(told) == 1 + 6 + 4
    assert {line.split()[0] for line in told[1:7]} == {whole.hosts[2].address, whole.hosts[2].address6}
    assert "host2" not in Path("/etc/hosts").read_text() and os.uname().nodename != "host1"
    root = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True).stdout
    assert "port1" not in root and "eth0@" not in root


@pytest.mark.parametrize("mbit", [400, pytest.param(100, marks=pytest.mark.chaos)])
def test_a_rate_holds_in_both_directions(whole: Lab, mbit: int) -> None:
    whole.rate(0, mbit)
    for source, target in ((0, 1), (1, 0)):
        assert mean_rate_when_it_reaches(0.9 * payload(mbit), whole, [source], target) < 1.1 * payload(mbit)


def test_two_that_send_to_one_share_its_rate(whole: Lab) -> None:
    whole.rate(2, 200)
    assert mean_rate_when_it_reaches(0.8 * payload(200), whole, [0, 1], 2) < 1.2 * payload(200)


def test_a_rate_is_changed_and_lifted(whole: Lab) -> None:
    whole.rate(0, 50)
    assert mean_rate_when_it_reaches(0.8 * payload(50), whole, [0], 1) < 1.2 * payload(50)
    whole.rate(0, None)
    assert mean_rate_when_it_reaches(4 * payload(200), whole, [0], 1) > 0


def mean_rate_when_it_reaches(least: float, lab: Lab, sources: list[int], target: int) -> float:
    """Send until the bytes of 0.3 s arrive at this rate; the rate from the first byte to the last, by then.

    The mean is what a link may not exceed, however late a busy machine runs the two programs. How soon they fill the
    link is the machine's affair: a link that they cannot fill at all is not found full within the time limit.
    """
    there = lab.hosts[target].address
    listeners = [Talk(lab, target, "listen", there) for _ in sources]
    ports = [listener.port() for listener in listeners]
    callers = [Talk(lab, source, "send", there, port, 60.0) for source, port in zip(sources, ports, strict=True)]

    def arrived() -> list[tuple[float, float]]:
        """Bytes of all listeners together, and when, oldest first."""
        samples = [[tuple(map(float, line.split())) for line in seen.lines()[1:]] for seen in listeners]
        counts, total = [0.0] * len(samples), []
        for now, which, count in sorted((now, which, count) for which, of in enumerate(samples) for count, now in of):
            counts[which] = count
            total.append((sum(counts), now))
        return total

    def fast_enough() -> bool:
        total = arrived()
        return any(
            end - start >= 0.3 and after - before >= least * (end - start)
            for at, (before, start) in enumerate(total)
            for after, end in total[at + 1 : at + 12 * len(sources)]
        )

    until(fast_enough, f"{least / 1e6:.1f} MB/s", 40.0)
    for caller in callers:
        caller.process.kill()
    count, end = arrived()[-1]
    return count / (end - min(float(caller.lines()[0]) for caller in callers))


@pytest.mark.parametrize("way", ["both", "in", "out"])
def test_a_cut_is_silent_and_heals(whole: Lab, way: str) -> None:
    there = whole.hosts[1].address
    listener = Talk(whole, 1, "listen", there)
    port = listener.port()
    caller = Talk(whole, 0, "echo", there, port)
    until(lambda: len(caller.lines()) > 5, "a few echoes")
    whole.cut(1, way)
    before = len(caller.lines())
    with pytest.raises(AssertionError, match="not within"):  # at most the one that was under way
        until(lambda: len(caller.lines()) > before + 1, "an echo through a cut link", 0.7)
    # Nobody is told: both programs wait, the connection stands at both ends, the carrier is there.
    assert caller.process.poll() is None and listener.process.poll() is None
    assert not any("error" in line or "end" in line for line in listener.lines())
    for host in (0, 1):
        assert "LOWER_UP" in said(whole, host, "ip -o link show eth0")
        assert connections(whole, host, port) == [ESTABLISHED]
    whole.heal(1)
    until(lambda: len(caller.lines()) > before + 20, "echoes through the healed link")
    assert not any("error" in line or "end" in line for line in listener.lines())


def test_a_cut_host_is_cut_from_all_and_the_others_are_not(whole: Lab) -> None:
    whole.cut(2)
    here = Talk(whole, 1, "listen", whole.hosts[1].address)
    assert int(Talk(whole, 0, "send", whole.hosts[1].address, here.port(), 0.05).output()) > 0
    lost = Talk(whole, 2, "send", whole.hosts[1].address, here.port(), 0.05)
    assert lost.process.wait(20.0) != 0
    assert "No route to host" in lost.lines()[-1] or "timed out" in lost.lines()[-1]


def test_a_way_that_is_none_is_refused(lab: Lab) -> None:
    with pytest.raises(ValueError, match=r"way is .both., .in. or .out., not 'up'"):
        lab.cut(0, "up")


def test_all_processes_of_a_host_are_killed_and_no_others(whole: Lab) -> None:
    # One with a child, and one whose parent is gone: the lab finds that, too.
    orphan = "import os, sys, time; os.fork() and os._exit(0); time.sleep(60)"
    family = "import os, time; os.fork(); time.sleep(60)"
    whole.run(1, [sys.executable, "-c", orphan], start_new_session=True).wait()
    struck = whole.run(1, [sys.executable, "-c", family], start_new_session=True)
    spared = whole.run(2, [sys.executable, "-c", family])
    until(lambda: len(whole.pids(1)) == 3 and len(whole.pids(2)) == 2, "processes on both hosts")
    pids = whole.pids(1)
    assert whole.kill_all(1) >= 3 and whole.pids(1) == []
    assert not any(alive(pid) for pid in pids) and struck.wait(5.0) == -signal.SIGKILL
    assert spared.poll() is None and len(whole.pids(2)) == 2
    assert whole.kill_all(1) == 0


def test_a_lab_that_cannot_be_finished_is_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    before = set(os.listdir("/run/netns"))
    monkeypatch.setattr(Lab, "rate", lambda *_: (_ for _ in ()).throw(NoLab("no rate today")))
    with pytest.raises(NoLab, match="no rate today"):
        Lab(2)
    assert set(os.listdir("/run/netns")) == before


def test_a_command_that_fails_is_named(lab: Lab) -> None:
    with pytest.raises(NoLab, match=r"tc qdisc replace .* failed: .*rate"):
        lab.rate(0, 0)


def test_a_lab_that_was_killed_is_swept_by_the_next_one() -> None:
    code = (
        "import sys, time; from tests.hosts.lab import Lab; lab = Lab(2)\n"
        "lab.run(1, [sys.executable, '-c', 'import time; time.sleep(300)'])\n"
        "print(lab.name, flush=True); time.sleep(300)"
    )
    maker = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert maker.stdout
    name = maker.stdout.readline().strip()
    until(lambda: any("process" in what for what in remains(name)), "its process")
    with Lab(1):
        assert len(remains(name)) >= 4, "a lab that lives was swept"
    maker.kill()
    maker.wait()  # not communicate: what it started has its output, and lives
    assert remains(name)
    with Lab(1):
        until(lambda: not remains(name), f"{name} to be swept")


def test_closing_ends_and_removes_everything() -> None:
    with Lab(2, rate=10) as lab:
        process = lab.run(0, ["sleep", 60])
        until(lambda: lab.pids(0), "its process")
        assert MARK not in os.environ
    assert process.poll() is not None and not remains(lab.name)
    lab.close()  # once more does no harm


def said(lab: Lab, host: int, command: str) -> str:
    """What a command on a host prints."""
    process = lab.run(host, ["sh", "-c", command], stdout=subprocess.PIPE, text=True)
    return str(process.communicate(timeout=20)[0])


def connections(lab: Lab, host: int, port: int) -> list[str]:
    """The states of a host's connections to or from this port, as the kernel numbers them."""
    lines = [line.split() for line in said(lab, host, "cat /proc/net/tcp").splitlines()[1:]]
    states = [line[3] for line in lines if f":{port:04X}" in (line[1][-5:], line[2][-5:])]
    return [state for state in states if state != LISTENING]
