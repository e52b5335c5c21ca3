"""`--on kubernetes`: what its manifests have pods do is done by hosts of a lab, which find each other by the names that
the Service would give them. There is no cluster: whatever makes, places and replaces pods is this test.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.hosts.lab import Lab
from tests.process.harness import TRAIN, environment, golden, until

pytestmark = [pytest.mark.process, pytest.mark.chaos]


class Cluster:
    """Takes what `holdfast run --on kubernetes --dry-run` prints, and runs its pods, each on a host of its own."""

    def __init__(self, lab: Lab, tmp_path: Path, *options: object, args: str = "normed") -> None:
        self._lab, self._at = lab, tmp_path
        words = ["--on", "kubernetes", "--dry-run"]
        words += ["--set", "kubernetes.show_token=true", "--set", "kubernetes.image=any"]
        words += ["--hosts", "2", "--workers", "1", "--dir", "runs/x", *map(str, options), str(TRAIN), *args.split()]
        done = subprocess.run(
            [sys.executable, "-m", "holdfast.cli.main", "run", *words], env=environment(), cwd=tmp_path, check=True,
            capture_output=True, text=True,
        )  # fmt: skip
        self.parts = {part["kind"]: part for part in json.loads(done.stdout)["items"]}
        self._spec = self.parts["Job"]["spec"]["template"]["spec"]
        name, service = (self.parts[kind]["metadata"]["name"] for kind in ("Job", "Service"))
        assert self._spec["subdomain"] == service, "or its pods have no names"
        hosts = lab.directory / "hosts"  # every pod of a Job is called NAME-INDEX
        named = [f"{host.address} {name}-{host.number}.{service}\n" for host in lab.hosts]
        hosts.write_text(hosts.read_text() + "".join(named))
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin" / "holdfast").write_text(f'#!/bin/sh\nexec {sys.executable} -m holdfast.cli.main "$@"\n')
        (tmp_path / "bin" / "holdfast").chmod(0o755)
        self._pods: list[subprocess.Popen[Any]] = []

    def pod(self, index: int) -> subprocess.Popen[Any]:
        """A new pod with this index, on the host of that number."""
        container = self._spec["containers"][0]
        inside = self._at / f"pod-{index}-{len(self._pods)}"
        # Its file system is a directory here.
        places = {"/dev/shm": inside / "shm"}
        places |= {mount["mountPath"]: inside / mount["name"] for mount in container["volumeMounts"]}

        def moved(text: str) -> str:
            for path, place in places.items():
                text = text.replace(path, str(place))
            return text

        for place in places.values():
            place.mkdir(parents=True)
            for file, text in self._files(place.name).items():
                (place / file).write_text(moved(text))
        env = environment(JOB_COMPLETION_INDEX=str(index), TMPDIR=str(inside / "shm"))
        env["PATH"] = f"{self._at}/bin:{env['PATH']}"
        words, cwd = [moved(word) for word in container["command"]], moved(container["workingDir"])
        with open(self._at / f"out-{inside.name}", "w") as out:
            self._pods.append(self._lab.run(index, words, env=env, cwd=cwd, stdout=out, stderr=out))
        return self._pods[-1]

    def _files(self, mount: str) -> dict[str, str]:
        """What a pod finds where this is mounted."""
        volume = next((volume for volume in self._spec["volumes"] if volume["name"] == mount), {})
        if "secret" in volume:
            assert volume["secret"]["secretName"] == self.parts["Secret"]["metadata"]["name"]
            return dict(self.parts["Secret"]["stringData"])
        if "configMap" in volume:
            assert volume["configMap"]["name"] == self.parts["ConfigMap"]["metadata"]["name"]
            return dict(self.parts["ConfigMap"]["data"])
        return {}

    @property
    def said(self) -> str:
        return "\n".join(f"== {path.name}\n{path.read_text()}" for path in sorted(self._at.glob("out-*")))

    def found(self, name: str) -> str:
        """A file of the run's directory, which is on the node of the pod with index 0."""
        paths = list(self._at.glob(f"pod-0-*/data/runs/x/{name}"))
        return paths[0].read_text() if paths else ""


@pytest.fixture
def lab() -> Iterator[Lab]:
    with Lab(2) as made:
        yield made


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_weights_are_those_of_one_process(lab: Lab, tmp_path: Path, tls: bool) -> None:
    cluster = Cluster(lab, tmp_path, *(["--tls"] if tls else []))
    second, first = cluster.pod(1), cluster.pod(0)  # they start in any order
    assert first.wait(120) == 0, cluster.said
    assert second.wait(30) == 0, cluster.said
    assert json.loads(cluster.found("summary.json"))["weights_sha256"] == golden("normed", 4)


def test_a_pod_is_evicted_and_another_takes_its_index(lab: Lab, tmp_path: Path) -> None:
    cluster = Cluster(lab, tmp_path, args=f"normed --epochs 6 --linger {tmp_path}/go")
    first, _ = cluster.pod(0), cluster.pod(1)
    until(lambda: cluster.found("story.jsonl").count(") joined") == 1, lambda: cluster.said, 60.0)
    lab.kill_all(1)
    other = cluster.pod(1)
    until(lambda: cluster.found("story.jsonl").count(") joined") == 2, lambda: cluster.said, 60.0)
    (tmp_path / "go").touch()
    assert first.wait(120) == 0, cluster.said
    assert other.wait(30) == 0, cluster.said
    assert json.loads(cluster.found("summary.json"))["weights_sha256"] == golden("normed", 4, "--epochs", "6")


def test_a_run_that_fails_has_the_exit_code_that_ends_the_job(lab: Lab, tmp_path: Path) -> None:
    cluster = Cluster(lab, tmp_path, args="no-such-model")
    rules = cluster.parts["Job"]["spec"]["podFailurePolicy"]["rules"]
    fatal = next(rule["onExitCodes"]["values"] for rule in rules if rule["action"] == "FailJob")
    first, _ = cluster.pod(0), cluster.pod(1)
    assert first.wait(120) in fatal, cluster.said
