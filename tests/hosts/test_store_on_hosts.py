"""The store between hosts whose network fails: verbs end at their deadlines, and pushes count once."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hosts.lab import Lab
from tests.process.harness import SCRIPTS, environment, until

pytestmark = [pytest.mark.process, pytest.mark.chaos]

SCRIPT = SCRIPTS / "store_cut_off.py"


def test_a_client_is_cut_off_for_a_while(tmp_path: Path) -> None:
    with Lab(2, rate=1000) as lab:
        lab.run(0, [sys.executable, SCRIPT, "serve", lab.hosts[0].address, tmp_path], env=environment())
        until((tmp_path / "address").exists, "the servers", 60.0)
        client = lab.run(
            1, [sys.executable, SCRIPT, "push", tmp_path], env=environment(), stdout=subprocess.PIPE, text=True
        )
        assert client.stdout is not None
        assert client.stdout.readline() == "going\n"
        lab.cut(1)
        assert re.fullmatch(
            r"Server 0 did not answer in time: client 'far' waits for a push of key 'w'\. It is process \d+\. Allow "
            r"more time \(timeout=\), or see what keeps it\.\n",
            client.stdout.readline(),
        )
        lab.heal(1)
        assert client.stdout.readline() == "all counted once\n"
        assert client.wait(60) == 0
        client.stdout.close()
