"""The manifests for Kubernetes: their text, how they fit together, what a pod does, and what real tools say to them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from holdfast import errors
from holdfast.config.cluster_config import KubernetesConfig
from holdfast.engines import kubernetes
from holdfast.engines.batch import BatchJob, job_name
from holdfast.errors import UsageError
from holdfast.transport.auth import token
from tests.unit.engines.submitted import golden, said, tool

FILES = {"train.py": "import model\n\nprint('trains')\n", "model.py": "\tx = 1\n"}
PLAIN = BatchJob("holdfast-train-1", f"{kubernetes.DATA}/runs/train-1", f"{kubernetes.BROUGHT}/train.py")
FULL = BatchJob(
    "holdfast-train-2", f"{kubernetes.DATA}/runs/train-2", "/app/it's mine/train.py", ("--name", "a b", "$HOME"),
    options=("--lanes", "8", "--servers", "1"), hosts=3, workers=2, servers=1, threads=2, listen="[::]:9000",
)  # fmt: skip
EVERYTHING = KubernetesConfig(
    cpus=3, gpus=1, memory="1.5GiB", time=7200.0, notice=120.0, retries=2, namespace="lab",
    image="images.example/train:1@sha256:00", claim="results",
)  # fmt: skip


def parts(job: BatchJob = PLAIN, config: KubernetesConfig | None = None) -> dict[str, Any]:
    found = kubernetes.manifests(job, config or KubernetesConfig(image="train"), FILES, "t" * 43)
    return {manifest["kind"]: manifest for manifest in found}


def pod(manifests: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = manifests["Job"]["spec"]["template"]["spec"]
    return spec


@pytest.mark.parametrize(
    ("name", "job", "config", "files"),
    [
        ("kubernetes_plain.json", PLAIN, KubernetesConfig(image="train"), FILES),
        ("kubernetes_full.json", FULL, EVERYTHING, {}),
    ],
)
def test_the_manifests_are_these(
    name: str, job: BatchJob, config: KubernetesConfig, files: dict[str, str]
) -> None:
    text = kubernetes.render(job, config, files)
    assert text == golden(name, text)
    items = kubernetes.manifests(job, config, files, kubernetes.HIDDEN)
    assert json.loads(text) == {"apiVersion": "v1", "kind": "List", "items": items}


def test_everything_that_is_named_is_there() -> None:
    manifests = parts()
    names = {manifest["metadata"]["name"] for manifest in manifests.values()}
    assert names == {PLAIN.name}
    labels = manifests["Job"]["spec"]["template"]["metadata"]["labels"]
    assert manifests["Service"]["spec"]["selector"] == labels
    assert pod(manifests)["subdomain"] == manifests["Service"]["metadata"]["name"]
    volumes = {volume["name"]: volume for volume in pod(manifests)["volumes"]}
    (container,) = pod(manifests)["containers"]
    assert {mount["name"] for mount in container["volumeMounts"]} == set(volumes)
    assert volumes["brought"]["configMap"]["name"] == manifests["ConfigMap"]["metadata"]["name"]
    assert volumes["secret"]["secret"]["secretName"] == manifests["Secret"]["metadata"]["name"]
    folder, _, start = container["command"][1].rpartition("/")
    assert folder == kubernetes.BROUGHT
    assert start in manifests["ConfigMap"]["data"]


def test_the_longest_name_still_makes_a_host_name() -> None:
    assert len(f"{job_name('x' * 200)}-99999") <= 63


def test_a_run_that_failed_is_not_tried_again_and_a_lost_host_is() -> None:
    ignored, failed = parts()["Job"]["spec"]["podFailurePolicy"]["rules"]
    assert ignored["onPodConditions"] == [{"type": "DisruptionTarget", "status": "True"}]
    codes = failed["onExitCodes"]["values"]
    assert codes == sorted(codes)  # Kubernetes asks for it
    final = {code for code in codes if code < 64}
    every = {item.exit_code for item in vars(errors).values() if isinstance(item, type)}
    luck = {errors.ResourceError.exit_code, errors.NetworkError.exit_code, errors.Refused.exit_code}
    assert final == every - luck


def test_the_token_is_in_the_secret_only_and_hidden_unless_it_is_given() -> None:
    config = KubernetesConfig(image="train")
    secret = token.make()
    shown = kubernetes.render(PLAIN, config, FILES, secret)
    assert shown.count(secret) == 1
    assert parts()["Secret"]["stringData"] == {"token": "t" * 43}
    assert kubernetes.HIDDEN in kubernetes.render(PLAIN, config, FILES)
    with pytest.raises(UsageError):  # who applies what --dry-run printed gets no run with a token that all know
        token.check(kubernetes.HIDDEN, "the manifest")


def test_without_a_claim_data_lies_on_the_node() -> None:
    volumes = {volume["name"]: volume for volume in pod(parts())["volumes"]}
    assert volumes["data"] == {"name": "data", "emptyDir": {}}
    assert "limits" not in pod(parts())["containers"][0]["resources"]


@pytest.mark.parametrize(
    ("memory", "text"), [("3GiB", "3Gi"), ("1.5GiB", "1536Mi"), ("1025KiB", "1025Ki"), ("2MB", "2000000")]
)
def test_memory(memory: str, text: str) -> None:
    resources = pod(parts(config=KubernetesConfig(image="train", memory=memory)))["containers"][0]["resources"]
    assert resources == {"requests": {"cpu": "1", "memory": text}, "limits": {"memory": text}}


# ------------------------------------------------------------ what a pod does


@pytest.mark.process
@pytest.mark.sharing
@pytest.mark.parametrize("index", [0, 1])
def test_pod_0_coordinates_and_the_others_join(index: int, tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tool(tools, "holdfast", """
        echo "$$ $*" >>"$said"
        while [[ $1 != --token-file ]]; do shift; done
        stat -c %a "$2" >>"$said"; cat "$2" >>"$said"; rm "$2"; exit 7
    """)
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "token").write_text("secret-token")
    (tmp_path / "secret" / "token").chmod(0o444)
    start = parts(FULL)["ConfigMap"]["data"]["holdfast-start.sh"].replace("/holdfast/secret", str(tmp_path / "secret"))
    variables = {"PATH": f"{tools}:{os.environ['PATH']}", "JOB_COMPLETION_INDEX": str(index)}
    with subprocess.Popen(["/bin/sh", "-c", start], env=variables) as child:
        assert child.wait(60) == 7
    command, mode, secret = said(tools, "holdfast")
    assert (mode, secret) == ("600", "secret-token")
    number, *words = command.split()
    assert int(number) == child.pid  # the shell has become holdfast: it gets the signals of Kubernetes
    where = words.index("--token-file") + 1
    assert words[where].startswith("/dev/shm/")
    words[where] = "FILE"
    told = {
        0: "run --on local --listen [::]:9000 --token-file FILE --dir /holdfast/data/runs/train-2 --hosts 3 "
           "--workers 2 --lanes 8 --servers 1 /app/it's mine/train.py --name a b $HOME",
        1: "join holdfast-train-2-0.holdfast-train-2:9000 --token-file FILE --patience 10m --workers 2",
    }  # fmt: skip
    assert " ".join(words) == told[index]


# ------------------------------------------------------------ what travels, and submitting


def test_the_script_brings_the_python_files_beside_it(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("é\n")
    (tmp_path / "model.py").write_text("x\r\n", newline="")
    (tmp_path / "data.csv").write_text("1")
    (tmp_path / "not a name.py").write_text("")
    assert kubernetes.files_of(str(tmp_path / "train.py")) == {"train.py": "é\n", "model.py": "x\r\n"}


def test_what_cannot_travel_is_refused(tmp_path: Path) -> None:
    def told(path: Path) -> str:
        with pytest.raises(UsageError) as caught:
            kubernetes.files_of(str(path))
        return str(caught.value)

    path = tmp_path / "my train.py"
    assert told(path) == f"{path} cannot travel in a ConfigMap by this name. Use letters, digits, -, _ and dots."
    path = tmp_path / "train.py"
    assert told(path) == f"{path} cannot be read: No such file or directory."
    path.write_bytes(b"\xff")
    assert told(path) == f"{path} cannot travel in a ConfigMap: it is not UTF-8. Save it as UTF-8."
    path.write_text("x" * 2**20)
    assert told(path) == (
        f"{path} and the Python files beside it have 1048576 bytes; a ConfigMap holds at most 1048576. Put them into "
        "the image, give the path there, and use --set kubernetes.bring=false."
    )


def test_submitting_gives_the_token_to_standard_input_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool(tmp_path, "kubectl", 'echo "$*" >>"$said"; cat >>"$said"')
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    secret = token.make()
    text = kubernetes.render(FULL, EVERYTHING, {}, secret)
    assert kubernetes.submit(text, FULL, EVERYTHING) == (
        "submitted to Kubernetes as job holdfast-train-2. `kubectl logs -n lab -f -l "
        "app.kubernetes.io/instance=holdfast-train-2,batch.kubernetes.io/job-completion-index=0` shows the run, "
        "`kubectl delete -n lab job,service,configmap,secret -l app.kubernetes.io/instance=holdfast-train-2` ends it "
        "and removes all of it."
    )
    command, *given = said(tmp_path, "kubectl")
    assert command == "apply --server-side -f -"
    assert given == text.splitlines()


def test_without_kubectl_a_sentence_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError) as caught:
        kubernetes.submit("", PLAIN, KubernetesConfig())
    assert str(caught.value) == (
        "kubectl was not found on this machine. Install it, or use --dry-run, which prints what would be applied."
    )


# ------------------------------------------------------------ real tools, where they are installed


def subset(ours: Any, theirs: Any) -> bool:
    """Whether everything of ours is there unchanged; defaults may have been added."""
    if isinstance(ours, dict):
        return isinstance(theirs, dict) and all(key in theirs and subset(ours[key], theirs[key]) for key in ours)
    if isinstance(ours, list):
        return isinstance(theirs, list) and all(map(subset, ours, theirs)) and len(ours) <= len(theirs)
    return bool(ours == theirs)


#: Texts that are easily misread, or that cannot be printed.
ODD = [
    "", "yes", "NO", "null", "~", "1e3", "- a", "a: b", "---\n", "{", "\ta\n", "a\r\n", "a\n\n",
    "\ufeffé😀\u2028\x85\x7f",
]  # fmt: skip


def read_by_kubectl(command: list[str], text: str, home: Path) -> list[Any]:
    """What kubectl writes of the manifests in `text` when it has done something harmless to each, without a cluster."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "KUBECONFIG": os.devnull}
    words = ["kubectl", *command, "--local", "-f", "-", "-o", "json"]
    done = subprocess.run(words, input=text, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    found, rest = [], done.stdout.lstrip()
    while rest:
        one, end = json.JSONDecoder().raw_decode(rest)
        found.append(one)
        rest = rest[end:].lstrip()
    return found


@pytest.mark.process
@pytest.mark.sharing
@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_kubectl_knows_every_field_of_the_job(tmp_path: Path) -> None:
    """It reads the Job into its own types, dropping what they do not have, and writes it again, without a cluster."""
    ours = parts(FULL, EVERYTHING)["Job"]
    (theirs,) = read_by_kubectl(["set", "env", "ADDED=1"], json.dumps(ours), tmp_path)
    assert subset(ours, theirs)


@pytest.mark.process
@pytest.mark.sharing
@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_kubectl_reads_the_list_as_all_the_manifests_with_every_letter(tmp_path: Path) -> None:
    odd = {f"odd-{number}.py": text for number, text in enumerate(ODD)}
    text = kubernetes.render(FULL, EVERYTHING, odd)
    theirs = read_by_kubectl(["label", "added=1"], text, tmp_path)
    assert len(theirs) == 4
    assert subset(kubernetes.manifests(FULL, EVERYTHING, odd, kubernetes.HIDDEN), theirs)


@pytest.mark.parametrize("version", ["1.31", "1.33"])
def test_the_schemas_of_kubernetes_take_the_manifests(version: str) -> None:
    validator = pytest.importorskip("kubernetes_validate", reason="the package kubernetes-validate is not installed")
    for job, config in ((PLAIN, KubernetesConfig(image="train")), (FULL, EVERYTHING)):
        for manifest in kubernetes.manifests(job, config, FILES, "t" * 43):
            validator.validate(manifest, version, strict=True)
