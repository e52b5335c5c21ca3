"""`holdfast doctor --listen` and `--between`: on this machine, and between hosts whose links have known rates."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.doctor import parser
from holdfast.cli.main import main
from holdfast.cli.network_report import table
from holdfast.core.routes import Address, Trial
from holdfast.transport.auth import token
from holdfast.transport.auth.credentials import Credentials
from holdfast.transport.auth.tls import Authority
from tests.unit.cli.launched import ENVIRONMENT, holdfast
from tests.unit.transport.namespaces import Namespace, TwoHosts, missing

pytestmark = pytest.mark.process


def test_the_flags_are_these() -> None:
    """A frozen set: scripts stand on it."""
    flags = {name for action in parser()._actions for name in action.option_strings}
    assert flags == {"-h", "--help", "--json", "--between", "--listen", "--token-file"}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--between", "a:1", "--listen", "::"], "--between measures and --listen is measured: start two commands."),
        (["--token-file", "x"], "--token-file is of use with --between or --listen only."),
        (["--between", "a:1", "b:2"], "Which token? Give --token-file FILE (or set HOLDFAST_TOKEN)."),
        (["--between", "a:1", "b:2", "c:3"], "--between takes one or two addresses, not 3"),
        (["--between", "gpu7"], "'gpu7' names no port."),
        (["--between", "a:1", "--token-file", "/nowhere/token"], "The credentials file /nowhere/token cannot be read"),
        (["--between"], "argument --between: expected at least one argument"),
    ],
)
def test_wrong_usage(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HOLDFAST_TOKEN", raising=False)
    assert main(["doctor", *words]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert len(error.splitlines()) == 1


def test_the_table() -> None:
    mine, theirs = Address("10.0.0.1", "eth0", speed=10_000), Address("10.0.0.2", "ens3")
    good = Trial("10.0.0.2", theirs, mine, 1.2e-4, 957e6, 48e6)
    dead = Trial("172.17.0.1", Address("172.17.0.1", "docker0", "inner"), problem="Nothing listens at 172.17.0.1:4000")
    assert table(["a", "b"], [dead, good], good).splitlines() == [
        "a                                  b                     round trip  a to b      b to a",
        "?                                  172.17.0.1 (docker0)  no: Nothing listens at 172.17.0.1:4000",
        "10.0.0.1 (eth0, claims 10 Gbit/s)  10.0.0.2 (ens3)       0.12 ms     957 Mbit/s  48 Mbit/s  <- used",
    ]


# ---------------------------------------------------------------- on this machine


class Listener:
    """A going `holdfast doctor --listen`."""

    def __init__(self, token_file: Path, where: str = "127.0.0.1") -> None:
        words = ["doctor", "--listen", where, "--token-file", str(token_file)]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "holdfast.cli.main", *words], env=ENVIRONMENT, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True,
        )
        assert self.process.stdout is not None
        self.said = ""
        while "Ctrl-C ends this" not in self.said:
            line = self.process.stdout.readline()
            assert line, self.process.communicate()
            self.said += line
        self.place = re.search(r"listening on (\S+)", self.said)[1]  # type: ignore[index]

    def end(self, number: int = signal.SIGKILL) -> tuple[int, str]:
        self.process.send_signal(number)
        _, errors = self.process.communicate(timeout=10)
        return self.process.returncode, errors


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[Listener]:
    it = Listener(tmp_path / "token")
    yield it
    it.end()


def test_between_here_and_a_listener(listener: Listener, tmp_path: Path) -> None:
    assert f"made {tmp_path / 'token'}: copy it to the other machines, readable by you alone\n" in listener.said
    assert (tmp_path / "token").stat().st_mode & 0o777 == 0o600
    assert f"holdfast doctor --between {listener.place} OTHER:PORT --token-file {tmp_path / 'token'}\n" in listener.said
    done = holdfast("doctor", "--between", listener.place, "--token-file", tmp_path / "token")
    assert done.returncode == 0, done.stderr
    assert "127.0.0.1 (lo)" in done.stdout and "<- used" in done.stdout
    assert "the only network that connects them" in done.stdout
    code, errors = listener.end(signal.SIGINT)
    assert (code, errors) == (0, "")


def test_between_two_listeners_as_json(listener: Listener, tmp_path: Path) -> None:
    other = Listener(tmp_path / "token")
    try:
        assert "made " not in other.said
        places = [listener.place, other.place]
        done = holdfast("doctor", "--between", *places, "--token-file", tmp_path / "token", "--json")
        found = json.loads(done.stdout)
        assert found["between"] == ["A", "B"]
        (way,) = found["ways"]
        assert way["used"] and way["problem"] == "" and way["sent"] > 1e6 and way["received"] > 1e6
        assert 0 < way["latency"] < 1
    finally:
        other.end()


def test_with_tls_what_is_measured_is_encrypted(tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    file = tmp_path / "credentials"
    Credentials(token.make(), Authority("measured").issue("host")).write(file)
    token.write(tmp_path / "token", Credentials.read(file).token)
    listener = Listener(file)
    try:
        done = holdfast("doctor", "--between", listener.place, "--token-file", file)
        assert (done.returncode, done.stderr) == (0, "")
        assert "<- used" in done.stdout
        plain = holdfast("doctor", "--between", listener.place, "--token-file", tmp_path / "token")
        assert plain.returncode == 11
        assert "was started with --tls, and this machine has no certificate." in plain.stderr
    finally:
        listener.end()


def test_wrong_ones_are_told_apart(listener: Listener, tmp_path: Path) -> None:
    token.write(tmp_path / "other", token.make())
    done = holdfast("doctor", "--between", listener.place, "--token-file", tmp_path / "other")
    assert done.returncode == 11
    assert f"holdfast: The run at {listener.place} has another token." in done.stderr
    done = holdfast("doctor", "--between", listener.place, listener.place, "--token-file", tmp_path / "token")
    assert done.returncode == 2
    assert f"{listener.place} and {listener.place} are the same listener." in done.stderr
    _, errors = listener.end()
    assert "it does not hold the run's token" in errors
    done = holdfast("doctor", "--between", listener.place, "--token-file", tmp_path / "token")
    assert done.returncode == 10
    assert f"Nothing listens at {listener.place}." in done.stderr


# ---------------------------------------------------------------- between hosts


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[TwoHosts]:
    if reason := missing():
        pytest.skip(reason)
    with TwoHosts([50, 1000], tmp_path) as it:
        yield it


def between(hosts: TwoHosts, host: Namespace, *places: str) -> tuple[list[dict[str, Any]], str]:
    """What was measured, and the sentence."""
    words = ["doctor", "--between", *places, "--token-file", hosts.directory / "token", "--json"]
    found = json.loads(host.run(sys.executable, "-m", "holdfast.cli.main", *words))
    return found["ways"], found["sentence"]


def check_choice(slow: dict[str, Any], fast: dict[str, Any], sentence: str) -> None:
    """The fast link is used, none was measured faster than it is, and the factor is that of what was measured."""
    assert (slow["here"]["interface"], fast["there"]["interface"]) == ("net0", "net1")
    for direction in ("sent", "received"):
        assert 0 < slow[direction] < 52e6 and 0 < fast[direction] < 1040e6
    assert fast["used"] and not slow["used"]
    factor = re.search(r", ([\d.]+)x faster than net0 to ", sentence)
    rates = [min(way["sent"], way["received"]) for way in (fast, slow)]
    assert factor and float(factor[1]) == pytest.approx(rates[0] / rates[1], rel=0.1), (rates, sentence)


def test_the_fast_network_is_chosen_and_the_factor_is_told(hosts: TwoHosts) -> None:
    one, other = hosts.listen(hosts.a), hosts.listen(hosts.b)
    (slow, fast), sentence = between(hosts, hosts.b, f"10.77.0.1:{one}", f"10.77.0.2:{other}")
    check_choice(slow, fast, sentence)
    assert sentence.startswith("A and B talk over net1 to 10.77.1.2 (")
    (again, fast_again), sentence = between(hosts, hosts.a, f"10.77.0.2:{other}")
    check_choice(again, fast_again, sentence)
    # The rates are those of the links, less what Ethernet and TCP add. A machine that stands still during a burst of
    # 0.3 s makes a link look slower than it is, so the better of the two is looked at.
    for direction in ("sent", "received"):
        assert max(slow[direction], again[direction]) > 25e6
        assert max(fast[direction], fast_again[direction]) > 500e6


def test_a_joining_host_chooses_the_fast_network(hosts: TwoHosts) -> None:
    """What `holdfast join` calls: bounded, and the same choice."""
    port = hosts.listen(hosts.b)
    code = """
import sys, time
from pathlib import Path
from holdfast.transport.auth.credentials import Credentials
from holdfast.transport.auth.dial import connect
from holdfast.transport.auth.handshake import Hello
from holdfast.transport.network import describe, probe
credentials = Credentials.read(Path(sys.argv[1]))
dial = lambda ip, port: connect((ip, port), Hello("probe"), credentials, 2.0)
offer = describe(dial("10.77.0.2", int(sys.argv[2])))
begin = time.perf_counter()
choice = probe(offer, dial, here="host 1")
print(time.perf_counter() - begin)
print(choice.trial.dial)
print(choice.sentence)
"""
    seconds, dialled, sentence = hosts.a.run(sys.executable, "-c", code, hosts.directory / "token", port).splitlines()
    assert dialled == "10.77.1.2"
    assert re.search(r"^host 1 and .* talk over net1 to 10\.77\.1\.2 .*, [\d.]+x faster than net0 to 10\.77", sentence)
    assert float(seconds) < 2.0  # two wires, 0.3 s of bursts each


def test_a_link_that_is_cut_silently_is_named(hosts: TwoHosts) -> None:
    one, other = hosts.listen(hosts.a), hosts.listen(hosts.b)
    hosts.b.run("tc", "qdisc", "replace", "dev", "net1", "root", "tbf", "rate", "8bit", "burst", "10", "limit", "1")
    (slow, cut), sentence = between(hosts, hosts.a, f"10.77.0.1:{one}", f"10.77.0.2:{other}")
    assert slow["used"]
    assert cut["problem"] == f"No answer from 10.77.1.2:{other} within 2 s"
    assert sentence.endswith("the only network that connects them")


def test_an_address_that_both_hosts_have_is_not_taken_for_the_other(hosts: TwoHosts) -> None:
    """As with the bridges of containers: dialling 172.17.0.1 reaches oneself, faster than any network."""
    for host in (hosts.a, hosts.b):
        host.run("ip", "link", "add", "docker0", "type", "bridge")
        host.run("ip", "address", "add", "172.17.0.1/16", "dev", "docker0")
        host.run("ip", "link", "add", "veth0", "master", "docker0", "type", "veth", "peer", "name", "container")
        for name in ("container", "veth0", "docker0"):
            host.run("ip", "link", "set", name, "up")
    port = hosts.listen(hosts.a)
    assert hosts.listen(hosts.b, f"0.0.0.0:{port}") == port
    ways, _ = between(hosts, hosts.a, f"10.77.0.1:{port}", f"10.77.0.2:{port}")
    assert [(way["there"]["ip"], way["used"]) for way in ways] == [
        ("10.77.0.2", False), ("10.77.1.2", True), ("172.17.0.1", False),
    ]
    assert ways[2]["problem"] == "another machine answers there, or this one itself"


def test_a_cable_without_any_configuration(tmp_path: Path) -> None:
    """Link-local addresses of IPv6 are all there is, and each side needs its own interface to dial them."""
    if reason := missing():
        pytest.skip(reason)
    with TwoHosts([100, 1000], tmp_path, numbered=False) as hosts:
        one, other = hosts.listen(hosts.a, "::"), hosts.listen(hosts.b, "::")
        ways, sentence = between(hosts, hosts.a, f"[fe80::0:1%net0]:{one}", f"[fe80::0:2%net0]:{other}")
        assert [(way["dial"], way["used"]) for way in ways if not way["problem"]] == [
            ("fe80::2%net0", False), ("fe80::1:2%net1", True),
        ]
        assert "x faster than net0 to fe80::2 (" in sentence
