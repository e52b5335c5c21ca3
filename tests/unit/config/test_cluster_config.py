"""What a cluster may be asked for, and the sentences for what it may not."""

from __future__ import annotations

import re

import pytest

from holdfast.config.cluster_config import ClusterConfig, KubernetesConfig, SlurmConfig, check
from holdfast.errors import ConfigError
from tests.markdown import ROOT

IMAGE = "images.example/lab/train:1.0@sha256:00ff"


def told(section: str, config: ClusterConfig, *fields: str) -> str:
    with pytest.raises(ConfigError) as caught:
        check(section, config, dict.fromkeys((f"{section}.{field}" for field in fields), "--set"))
    return str(caught.value)


def test_what_is_right() -> None:
    check("slurm", SlurmConfig(), {})
    check("slurm", SlurmConfig(memory="4GiB", constraint="intel&ssd|[rack1*2]", setup="a\nb"), {})
    check("kubernetes", KubernetesConfig(image=IMAGE, namespace="lab-1", claim="results"), {})


@pytest.mark.parametrize("field", ["cpus", "gpus", "time", "notice", "retries"])
def test_nothing_is_negative(field: str) -> None:
    assert told("slurm", SlurmConfig(**{field: -1}), field) == f"slurm.{field} = -1: must be 0 or more (set by --set)."


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        (
            SlurmConfig(notice=1e5),
            "slurm.notice = 100000.0: must be 65535 s or less (set by default). Use --set slurm.notice=5m.",
        ),
        (
            SlurmConfig(time=60.0),
            "slurm.time = 60.0: must be more than slurm.notice = 60 s, or the run is told to end as it begins (set by "
            "default). Use --set slurm.time=1h, or a shorter notice: --set slurm.notice=5s.",
        ),
        (SlurmConfig(memory="4"), "slurm.memory = 4: must be a size such as 4GiB (set by default)."),
        (SlurmConfig(memory="4KiB"), "slurm.memory = 4KiB: must be 1MiB or more (set by default)."),
        (SlurmConfig(partition="a b"), "slurm.partition = a b: must be one word, without quotes (set by default)."),
        (SlurmConfig(account='a"'), 'slurm.account = a": must be one word, without quotes (set by default).'),
        (SlurmConfig(qos="a#"), "slurm.qos = a#: must be one word, without quotes (set by default)."),
        (SlurmConfig(options="a\nb"), "slurm.options = a\nb: must be one line (set by default)."),
        (
            KubernetesConfig(),
            "kubernetes.image = : there is no image that suits everybody (set by default). Name one that has "
            "holdfast and what your script imports: --set kubernetes.image=NAME.",
        ),
        (
            KubernetesConfig(image="a b"),
            "kubernetes.image = a b: must be the name of an image (set by default). Name one that has holdfast and "
            "what your script imports: --set kubernetes.image=NAME.",
        ),
        (
            KubernetesConfig(image=IMAGE, namespace="Lab"),
            "kubernetes.namespace = Lab: must be a name of at most 63 small letters, digits and dashes (set by "
            "default).",
        ),
        (
            KubernetesConfig(image=IMAGE, claim="a_b"),
            "kubernetes.claim = a_b: must be a name of at most 63 small letters, digits and dashes (set by default).",
        ),
    ],
)
def test_what_is_wrong(config: ClusterConfig, sentence: str) -> None:
    assert told("slurm" if isinstance(config, SlurmConfig) else "kubernetes", config) == sentence


@pytest.mark.parametrize(("section", "struct"), [("slurm", SlurmConfig), ("kubernetes", KubernetesConfig)])
def test_every_setting_is_in_the_table_of_its_page(section: str, struct: type[ClusterConfig]) -> None:
    page = (ROOT / "docs" / "clusters.md").read_text(encoding="utf-8")
    rows = [line.partition(" | ")[0] for line in page.splitlines() if line.startswith(f"| `{section}.")]
    told = [name for row in rows for name in re.findall(rf"`{section}\.(\w+)`", row)]
    assert sorted(told) == sorted(struct.__struct_fields__)
