"""torchrun on two machines: what its ranks need to find each other goes over a real network, and nothing else does."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest

from tests.hosts.lab import Lab
from tests.process.harness import golden
from tests.process.ranks import Ranks

pytestmark = [pytest.mark.process, pytest.mark.chaos]


def test_torchrun_on_two_machines_gives_the_weights_of_plain_python(tmp_path: Path) -> None:
    with Lab(2) as lab, Ranks(tmp_path, "lenet") as ranks:
        for host in range(2):
            ranks.torchrun(
                "--nnodes", 2, "--nproc-per-node", 1, "--rdzv-backend", "c10d", "--rdzv-endpoint", "host0:29400",
                "--rdzv-id", "job", "--rdzv-conf", f"is_host={int(host == 0)}", "--local-addr", lab.hosts[host].address,
                run=functools.partial(lab.run, host),
            )  # fmt: skip
        assert ranks.ends() == [0, 0], ranks.all_said
    assert ranks.sha256 == golden("lenet", 4)
    assert any(re.search(r"host 1 and host 0 \(host\d\) talk over eth0", line) for line in ranks.story), ranks.story


def test_ranks_on_two_machines_and_the_link_is_cut(tmp_path: Path) -> None:
    """The machine that is cut off ends its ranks; the one that coordinates goes on."""
    with Lab(2) as lab, Ranks(tmp_path, "normed", "--epochs", 6, "--pace", 0.01) as ranks:
        for rank in range(2):
            ranks.start(
                ranks.script(), functools.partial(lab.run, rank), RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="host0",
                MASTER_PORT="29500",
            )  # fmt: skip
        ranks.at_step(30)
        lab.cut(1)
        first, second = ranks.ends()
        assert first == 0 and second != 0, ranks.all_said
    assert ranks.sha256 == golden("normed", 4, "--epochs", "6")
    assert any("host 1 lost (no sign of life" in line for line in ranks.story), ranks.story
