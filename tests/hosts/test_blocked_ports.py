"""A machine whose port is blocked: it can reach the others, and they cannot reach it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hosts.harness import Spread
from tests.hosts.lab import Lab
from tests.process.harness import golden

pytestmark = [pytest.mark.process, pytest.mark.chaos]

PORT = 7100
LISTEN = ("--listen", f"0.0.0.0:{PORT}")
ARGS = "--epochs 10"


def test_it_is_refused_at_the_door_with_a_sentence(tmp_path: Path) -> None:
    with Lab(2) as lab, Spread(
        lab, tmp_path, "normed", "--lanes", 4, hosts=1, args="--epochs 6 --pace 0.1", joiners=LISTEN
    ) as run:
        run.at_step(3)
        lab.shut(1, PORT)
        run.join(1)
        run.shaken.add(1)
        assert run.joined[1].wait(60.0) == 11, run.said
        sentence = (
            "host 0 cannot reach host 1 (host1) at any of its addresses, port 7100 (eth0 to 10.89.0.2: No answer from "
            "10.89.0.2:7100 within 5 s). Let that port through the firewalls between them, or have host 1 (host1) "
            "listen on an address and a port that host 0 can reach (--listen ADDRESS:PORT)."
        )
        assert run.said.count(sentence) == 2, f"on both machines\n{run.said}"
        assert "joined run" not in run.said
        assert run.end() == 0, run.said
    assert run.sha256 == golden("normed", 4, "--epochs", "6")
    assert run.summary["workers_lost"] == 0


def test_a_port_that_is_blocked_later_costs_a_host_and_no_step(tmp_path: Path) -> None:
    """Host 0 loses its worker and is left behind; it would have to get the state from host 1, and cannot."""
    args = "--epochs 30"  # many short steps: host 1 makes some before there is another worker on host 0
    with Lab(2) as lab, Spread(
        lab, tmp_path, "normed", "--lanes", 4, hosts=2, args=f"{args} --pace 0.01", joiners=LISTEN
    ) as run:
        run.at_step(5)
        lab.shut(1, PORT)
        run.strike(run.on(0)[0])
        run.told("host 0 cannot reach host 1 (host1) at any of its addresses, port 7100 (eth0 to 10.89.0.2: ", 60.0)
        run.shaken.add(1)  # which of the two goes depends on how far host 0 is behind
        run.told("let the port through the firewalls between them, or choose one that is open with --listen")
        assert run.end(180.0) == 0, run.said
        run.trace.audit(samples=484, steps_of_epoch=16, epochs=30)
    assert run.sha256 == golden("normed", 4, *args.split()), run.said


def test_a_connection_that_falls_silent_between_two_of_three_hosts(tmp_path: Path) -> None:
    """Nothing of host 1 reaches host 2 any more, over the connection that is open and over any other."""
    with Lab(3) as lab, Spread(
        lab, tmp_path, "normed", "--lanes", 6, hosts=3, args=f"{ARGS} --pace 0.03", joiners=LISTEN
    ) as run:
        run.at_step(5)
        numbers = {run.number(host): host for host in (1, 2)}  # they may have come in either order
        older, newer = sorted(numbers)
        lab.shut(numbers[older], PORT)
        run.shaken.update((1, 2))
        run.told(" does not answer any more)", 60.0)
        run.told(f"host {newer} cannot reach host {older} (", 60.0)
        run.told(f"host {newer} is let go (it cannot reach host {older}) with worker", 60.0)
        assert run.end() == 0, run.said
        run.trace.audit(samples=484, steps_of_epoch=16, epochs=10)
    assert run.sha256 == golden("normed", 6, *ARGS.split()), run.said
