"""A server as strangers meet it: what they may not do, and that its other clients do not notice."""

from __future__ import annotations

import gzip
import http.client
import json
import os
import pty
import resource
import select
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.serve.endpoints.authorization import Authorization
from holdfast.serve.endpoints.http_app import HttpInference
from holdfast.serve.models.catalog import Catalog
from holdfast.serve.protocol.limits import ProtocolLimits
from tests.process.harness import environment, holdfast, until
from tests.process.models import marked
from tests.process.serving import Served

pytestmark = [pytest.mark.process, pytest.mark.sharing]

SECRET = "a-secret-of-the-environment-4711"
ROW = {"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}]}
INFER = "/v2/models/marked/infer"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("model") / "marked"
    marked(root)
    return root


@pytest.fixture(scope="module")
def served(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Started by somebody who has a secret in the environment."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        with Served(model, directory=tmp_path_factory.mktemp("served") / "run") as served:
            yield served


@pytest.fixture(scope="module")
def guarded(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """With a token, and its metrics apart."""
    scratch = tmp_path_factory.mktemp("guarded")
    options = ("--token-file", str(scratch / "token"), "--metrics-port", "0", "--log-requests")
    with Served(model, directory=scratch / "run", options=options) as served:
        yield served


def token_of(guarded: Served) -> str:
    return (guarded.directory.parent / "token").read_text().strip()


def works(served: Served, **headers: str) -> None:
    answered = served.ask(INFER, json.dumps(ROW).encode(), headers)
    assert answered.status == 200 and answered.json["outputs"][0]["data"] == [1, 2, 3, 4], answered.body


def raw(served: Served, timeout: float = 30.0) -> socket.socket:
    return socket.create_connection(("127.0.0.1", served.port), timeout=timeout)


def said(sock: socket.socket) -> bytes:
    """All that is still to come on a connection; sent bytes that nobody reads end it, too."""
    found = b""
    try:
        while part := sock.recv(65536):
            found += part
    except ConnectionError:
        pass
    return found


# ---------------------------------------------------------------- who gets in


def paths() -> list[str]:
    """Everything that the app answers."""
    app = HttpInference(Catalog(), Authorization(None), ProtocolLimits(), version="", pages={}, metrics=lambda: b"")
    return [path.decode().replace("/m/", "/marked/") for path in app.paths]


@pytest.mark.parametrize("path", paths())
def test_without_the_token_nothing_is_answered(guarded: Served, path: str) -> None:
    for method in ("GET", "POST", "PUT", "DELETE", "HEAD"):
        for headers in ({}, {"Authorization": "Bearer " + "x" * 43}, {"Authorization": token_of(guarded)}):
            answered = guarded.ask(path, b"{}" if method in ("POST", "PUT") else None, headers, method)
            assert answered.status == 401, (method, path, headers)
            assert method == "HEAD" or list(answered.json) == ["error"]
            assert answered.headers["www-authenticate"] == "Bearer"


def test_with_the_token_it_is(guarded: Served) -> None:
    works(guarded, Authorization=f"Bearer {token_of(guarded)}")


def test_metrics_on_their_own_port_ask_for_the_token(guarded: Served) -> None:
    own = {"Authorization": f"Bearer {token_of(guarded)}"}
    assert guarded.addresses["metrics"].startswith("http://127.0.0.1:")
    assert guarded.ask("/metrics", None, own).status == 404  # not beside the rest
    port = int(guarded.addresses["metrics"].rpartition(":")[2])
    for path, headers, wanted in (("/metrics", {}, 401), ("/metrics", own, 200), (INFER, own, 404), ("/", {}, 401)):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        connection.request("GET", path, headers=headers)
        response = connection.getresponse()
        assert response.status == wanted, path
        body = response.read()
        assert wanted != 200 or b"holdfast_requests_total" in body
        connection.close()


def test_the_token_is_nowhere_to_be_read(guarded: Served) -> None:
    """Not in a log, nor in ps, the environment of any process, or an answer."""
    token = token_of(guarded)
    for shown in (f"Bearer {token}", f"Bearer {token}x", token):
        guarded.ask(INFER, b"{", {"Authorization": shown, "X-Request-Id": "about-tokens"})
    lines = guarded.directory / "requests.jsonl"
    until(lambda: lines.exists() and lines.read_bytes().count(b"about-tokens") == 3, "the lines of these requests")
    pids = [guarded.process.pid, *guarded.replicas()]
    for pid in pids:
        for file in ("cmdline", "environ"):
            assert token.encode() not in Path(f"/proc/{pid}/{file}").read_bytes()
    for file in guarded.directory.rglob("*"):
        assert not file.is_file() or token.encode() not in file.read_bytes(), file
    assert (guarded.directory.parent / "token").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--host", "0.0.0.0"), "Add --token-file FILE"),
        (("--host", "::"), "Add --token-file FILE"),
        (("--port", "99999"), "a port is between 0 and 65535"),
        (("--certificate", "CERT"), "--certificate and --key go together"),
        (("--certificate", "CERT", "--key", "CERT"), "Give a certificate and its private key"),
        (("--certificate", "GOOD", "--key", "LOCKED"), "Give a certificate and its private key without a password"),
        (("--certificate", "away", "--key", "away"), "Give a certificate and its private key"),
    ],
)
def test_what_it_refuses_to_start_with(model: Path, tmp_path: Path, options: tuple[str, ...], sentence: str) -> None:
    (tmp_path / "CERT").write_text("no certificate")
    certificate(tmp_path, "GOOD")
    words = [str(tmp_path / word) if word in ("CERT", "GOOD", "LOCKED", "away") else word for word in options]
    done = holdfast("serve", model, "--dir", tmp_path / "run", *words)
    assert done.returncode == 2 and sentence in done.stderr, done.stderr
    assert "Traceback" not in done.stderr


def test_a_key_with_a_password_is_refused_and_not_asked_for(model: Path, tmp_path: Path) -> None:
    """Also at a terminal, where OpenSSL would ask and wait."""
    certificate(tmp_path, "GOOD")
    words = ["--dir", tmp_path / "run", "--certificate", tmp_path / "GOOD", "--key", tmp_path / "LOCKED"]
    command = [sys.executable, "-m", "holdfast.cli.main", "serve", model, *words]
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvpe(sys.executable, list(map(str, command)), environment())
    printed = b""
    try:
        until(lambda: select.select([terminal], [], [], 0.1)[0], "something at the terminal")
        while part := os.read(terminal, 4096):
            printed += part
            assert b"pass phrase" not in printed
    except OSError:  # of a terminal that nobody has any more
        pass
    finally:
        os.close(terminal)
        _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 2 and b"without a password" in printed, printed


def test_a_port_that_is_taken(model: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = holdfast("serve", model, "--dir", tmp_path / "run", "--port", port)
        assert done.returncode == 2
        assert f"Port {port} of 127.0.0.1 cannot be used: somebody listens there already." in done.stderr
        assert "Traceback" not in done.stderr


# ---------------------------------------------------------------- TLS


def certificate(directory: Path, name: str) -> None:
    """A certificate of 127.0.0.1, its key, and the key with a password."""
    cryptography = pytest.importorskip("cryptography")
    assert cryptography
    import datetime
    import ipaddress

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder().subject_name(subject).issuer_name(subject).public_key(key.public_key())
        .serial_number(1).not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        .sign(key, hashes.SHA256())
    )  # fmt: skip
    (directory / name).write_bytes(made.public_bytes(serialization.Encoding.PEM))
    pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    (directory / f"{name}.key").write_bytes(key.private_bytes(pem, form, serialization.NoEncryption()))
    locked = serialization.BestAvailableEncryption(b"password")
    (directory / "LOCKED").write_bytes(key.private_bytes(pem, form, locked))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tls(model: Path, tmp_path: Path) -> None:
    certificate(tmp_path, "cert")
    options = ("--certificate", str(tmp_path / "cert"), "--key", str(tmp_path / "cert.key"))
    with Served(model, directory=tmp_path / "run", options=options) as served:
        assert served.addresses["http"].startswith("https://127.0.0.1:")
        trusted = ssl.create_default_context(cafile=str(tmp_path / "cert"))
        for _ in range(2):
            connection = http.client.HTTPSConnection("127.0.0.1", served.port, timeout=30, context=trusted)
            for _ in range(3):
                connection.request("POST", INFER, json.dumps(ROW))
                response = connection.getresponse()
                assert response.status == 200 and b"outputs" in response.read()
            connection.close()
        with raw(served) as sock:  # who speaks no TLS learns nothing
            sock.sendall(b"GET /v2 HTTP/1.1\r\n\r\n")
            assert b"HTTP" not in said(sock)
        old = ssl.create_default_context(cafile=str(tmp_path / "cert"))
        old.minimum_version = ssl.TLSVersion.TLSv1
        old.maximum_version = ssl.TLSVersion.TLSv1_1
        old.set_ciphers("ALL:@SECLEVEL=0")
        with raw(served) as sock, pytest.raises((ssl.SSLError, ConnectionError)):
            old.wrap_socket(sock, server_hostname="127.0.0.1")
        with raw(served) as sock, trusted.wrap_socket(sock, server_hostname="127.0.0.1") as safe:
            safe.sendall(b"POST /v2 HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n" + b"x" * 100_000)
            assert safe.recv(1000).startswith(b"HTTP/1.1 413")


# ---------------------------------------------------------------- too much of everything


TOO_MUCH = {
    "a huge length": (b"POST %s HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n" + b"x" * 1_000_000, 413),
    "10,000 headers": (b"GET %s HTTP/1.1\r\n" + b"a: b\r\n" * 10_000 + b"\r\n", 431),
    "a header of 10 MB": (b"GET %s HTTP/1.1\r\na: " + b"b" * 10_000_000 + b"\r\n\r\n", 431),
    "a URL of 1 MB": (b"GET %s" + b"a" * 1_000_000 + b" HTTP/1.1\r\n\r\n", 414),
    "100,000 chunks": (b"POST %s HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 100_000, 413),
    "two ends": (b"POST %s HTTP/1.1\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    "rubbish": (b"\x16\x03\x01 %s" + os.urandom(1000), 400),
}


@pytest.mark.parametrize("what", TOO_MUCH)
def test_too_much(served: Served, what: str) -> None:
    """The client is told so, also while it is still sending."""
    data, status = TOO_MUCH[what]
    with raw(served) as sock:
        try:
            sock.sendall(data.replace(b"%s", INFER.encode()))
        except ConnectionError:
            pass
        found = said(sock)
    assert found.startswith(b"HTTP/1.1 %d " % status), found[:200]
    body = json.loads(found.partition(b"\r\n\r\n")[2])
    assert list(body) == ["error"] and len(body["error"]) < 300
    works(served)


def test_a_body_in_chunks_without_end(served: Served) -> None:
    """It is answered when it is too much, and cut off by who goes on nevertheless."""
    chunk = b"100000\r\n" + b"0" * (1 << 20) + b"\r\n"
    with raw(served) as sock:
        sock.sendall(f"POST {INFER} HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
        sent, began = 0, time.monotonic()
        while not select.select([sock], [], [], 0)[0]:
            sock.sendall(chunk)
            sent += 1
            assert sent < 200
        assert sock.recv(1000).startswith(b"HTTP/1.1 413 ") and sent >= 64
        with pytest.raises(ConnectionError):
            while time.monotonic() < began + 20.0:
                sock.sendall(chunk)
    works(served)


def test_bombs(served: Served) -> None:
    """What is small and unpacks to a gigabyte is refused, and never unpacked."""
    before = peak(served.process.pid)
    for encoding, body in (
        ("gzip", gzip.compress(b"0" * (1 << 30), 1)), ("deflate", gzip.compress(b"0" * 1000)), ("br", b"x"),
    ):  # fmt: skip
        answered = served.ask(INFER, body, {"Content-Encoding": encoding})
        assert answered.status in (400, 413, 415) and "error" in answered.json, (encoding, answered.body)
    assert peak(served.process.pid) - before < 300 << 20
    works(served)


def peak(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))


@pytest.mark.parametrize("length", ["-1", "+1", "1_0", "0x10", "", " ", "1e3", "9" * 30, "100000", "\xb2"])
def test_lengths_of_the_json_that_are_none(served: Served, length: str) -> None:
    body = json.dumps(ROW).encode()
    answered = served.ask(INFER, body, {"Inference-Header-Content-Length": length})
    assert answered.status == 400 and "Inference-Header-Content-Length" in answered.json["error"], answered.body


@pytest.mark.parametrize(
    "parameters",
    [{"holdfast_version": 3}, {"triton_enable_empty_final_response": True}, {"shared_memory_region": "r"},
     {"sequence_id": 7}, {"timeout": -1}, {"a": {"b": 1}}, {"x" * 300: 1}, {"a": "x" * 5000},
     {str(number): 1 for number in range(100)}],
)  # fmt: skip
def test_parameters_that_reach_for_more(served: Served, parameters: dict[str, object]) -> None:
    answered = served.ask(INFER, json.dumps({**ROW, "parameters": parameters}).encode())
    assert answered.status == 400 and "parameters" in answered.json["error"], answered.body


def test_errors_show_nothing_of_the_server(served: Served) -> None:
    tries = [
        ("/v2/models/../../etc/passwd", None), ("/v2/models/marked/versions/../config", None), ("/%2e%2e/etc", None),
        ("/v2/models/marked/versions/9/infer", b"{}"), (INFER, b""), (INFER, b"{"), (INFER, b"[" * 100_000),
        (INFER, b'{"inputs": 5}'), (INFER, json.dumps(ROW).replace("FP32", "FP99").encode()), ("/predict", b"\xff"),
        (INFER, json.dumps(ROW).replace("[1, 4]", "[4294967296, 4294967296]").encode()), ("/predict/nobody", b"{}"),
        ("/v2/repository/index", b"{}"), ("/v2/systemsharedmemory/status", None), ("/v2/trace/setting", None),
    ]  # fmt: skip
    for path, body in tries:
        answered = served.ask(path, body)
        assert 400 <= answered.status < 500 and list(answered.json) == ["error"], (path, answered.status)
        text = answered.json["error"]
        for leak in ("Traceback", 'File "', ".py", "0x", str(served.directory), "site-packages", "memfd"):
            assert leak not in text, text


def test_a_client_that_dribbles_its_headers(served: Served) -> None:
    """It is told that it is late, though it has never stopped sending."""
    with raw(served, 5.0) as sock:
        sock.sendall(b"GET /v2 HTTP/1.1\r\n")
        began, found = time.monotonic(), b""
        sock.settimeout(0.25)
        while not found and time.monotonic() < began + 20.0:
            try:
                sock.sendall(b"a")
                found = sock.recv(1000)
            except TimeoutError:
                continue
        assert found.startswith(b"HTTP/1.1 408 "), found
        assert 8.0 < time.monotonic() - began < 15.0
    works(served)


def test_who_comes_and_goes(served: Served) -> None:
    for count in range(300):
        with raw(served) as sock:
            if count % 3:
                sock.sendall(b"POST /predict HTTP/1.1\r\nContent-Length: 10\r\n\r\nabc"[: 20 * (count % 3)])
            if count % 2:  # a reset instead of an end
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    works(served)
    until(lambda: b"holdfast_http_connections 1\n" in served.ask("/metrics").body, "no connection but ours")


def test_a_flood_of_requests_that_nobody_reads_the_answers_of(served: Served) -> None:
    before = peak(served.process.pid)
    request = b"GET /v2/models/marked HTTP/1.1\r\nX-Request-Id: " + b"i" * 100 + b"\r\n\r\n"
    with raw(served) as sock:
        sock.settimeout(1.0)
        sent = 0
        try:
            while sent < 200:
                sock.sendall(request * 1000)
                sent += 1
        except (TimeoutError, ConnectionError):
            pass
        assert sent < 200, "it was read for ever"
        works(served)
    assert peak(served.process.pid) - before < 100 << 20


def test_answers_to_a_flood_are_in_their_order(served: Served) -> None:
    body = json.dumps(ROW).encode()
    with raw(served) as sock:
        for number in range(100):
            path = (INFER, "/v2/models/nobody/infer", "/predict")[number % 3].encode()
            head = b"POST %s HTTP/1.1\r\nX-Request-Id: n%d\r\nContent-Length: %d\r\n\r\n" % (path, number, len(body))
            sock.sendall(head + body)
        sock.sendall(b"GET /v2 HTTP/1.1\r\nConnection: close\r\n\r\n")
        found = said(sock)
    ids = [line.split()[1] for line in found.splitlines() if line.startswith(b"x-request-id: n")]
    assert ids == [b"n%d" % number for number in range(100)]


def test_too_many_connections(model: Path, tmp_path: Path) -> None:
    """Half of the descriptors that the process may have are for clients; the rest is for its replicas."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (400, hard))
    try:
        served = Served(model, directory=tmp_path / "run")
        served.wait_ready()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    with served:
        held = [raw(served) for _ in range(200)]
        until(lambda: refused(served).startswith(b"HTTP/1.1 503 "), "a connection refused")
        for sock in held[:5]:
            sock.close()
        until(lambda: refused(served).startswith(b"HTTP/1.1 200 "), "room again")
        works(served)
        for sock in held:
            sock.close()


def refused(served: Served) -> bytes:
    with raw(served) as sock:
        try:
            sock.sendall(b"GET /v2 HTTP/1.1\r\nConnection: close\r\n\r\n")
        except ConnectionError:
            pass
        return said(sock)


# ---------------------------------------------------------------- what replicas have


def family(served: Served) -> list[int]:
    """The front door, its forkserver and its replicas."""
    replicas = served.replicas()
    parents = {int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) for pid in replicas}
    return [served.process.pid, *parents, *replicas]


def test_a_replica_has_no_secrets_and_no_rights_to_gain(served: Served) -> None:
    door, *others = family(served)
    assert len(others) == 2
    assert SECRET.encode() in Path(f"/proc/{door}/environ").read_bytes()  # or the test would show nothing
    for pid in others:
        assert SECRET.encode() not in Path(f"/proc/{pid}/environ").read_bytes()
    for pid in served.replicas():
        assert "NoNewPrivs:\t1" in Path(f"/proc/{pid}/status").read_text()
        limits = Path(f"/proc/{pid}/limits").read_text()
        core = next(line for line in limits.splitlines() if line.startswith("Max core file size"))
        assert core.split()[4:6] == ["0", "0"]


def test_a_replica_has_one_link_and_no_other_way_out(served: Served) -> None:
    works(served)
    for pid in served.replicas():
        links = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
        assert sum(link.startswith("socket:") for link in links) == 1, links
        for link in links:
            allowed = link.startswith(("socket:", "/dev/null", "/memfd:", str(served.directory / "logs"), "/proc/"))
            assert allowed or link in ("pipe:", "anon_inode:[eventpoll]"), links


def test_memory_of_batches_has_no_name(served: Served) -> None:
    before = set(os.listdir("/dev/shm"))
    works(served)
    maps = Path(f"/proc/{served.replicas()[0]}/maps").read_text()
    assert "/memfd:holdfast (deleted)" in maps
    assert not {name for name in set(os.listdir("/dev/shm")) - before if "holdfast" in name or "torch" in name}


def test_nobody_is_called(served: Served) -> None:
    """Its processes have no connection but those that clients have made to its own port."""
    works(served)
    found = subprocess.run(["cat", f"/proc/{served.process.pid}/net/tcp"], capture_output=True, text=True, check=True)
    own = {
        os.readlink(f"/proc/{pid}/fd/{fd}")
        for pid in family(served) for fd in os.listdir(f"/proc/{pid}/fd") if os.path.lexists(f"/proc/{pid}/fd/{fd}")
    }  # fmt: skip
    for line in found.stdout.splitlines()[1:]:
        fields = line.split()
        if f"socket:[{fields[9]}]" in own:
            assert int(fields[1].rpartition(":")[2], 16) == served.port
