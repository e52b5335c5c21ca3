"""gRPC beside HTTP: who may ask, health, the two phases of an end, ports, TLS; and what ready, live and taken mean."""

from __future__ import annotations

import datetime
import ipaddress
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.serve.protocol.grpc_messages import METHODS
from tests.process.harness import holdfast, until
from tests.process.python_models import SLOW, STEADY, write_model
from tests.process.serving import Answered, Served

grpc = pytest.importorskip("grpc")

pytestmark = [pytest.mark.process, pytest.mark.sharing]

CLIENT, OPERATOR = "c" * 40, "o" * 40
MESSAGES = {method.name: method for method in METHODS}


@pytest.fixture
def begun(tmp_path: Path) -> Path:
    return tmp_path / "begun"


@pytest.fixture
def slow(tmp_path: Path, begun: Path) -> Path:
    return write_model(tmp_path / "slow", SLOW.format(begun=str(begun)))


@pytest.fixture
def served(tmp_path: Path, slow: Path) -> Iterator[Served]:
    with Served(slow, directory=tmp_path / "run", options=("--slo", "30s")) as served:
        yield served


def secret(path: Path, token: str) -> Path:
    path.write_text(token + "\n")
    path.chmod(0o600)
    return path


def code(channel: Any, path: str, metadata: Any = ()) -> tuple[str, str]:
    """What a call ends with."""
    try:
        channel.unary_unary(path)(b"", timeout=10, metadata=metadata)
    except grpc.RpcError as error:
        return error.code().name, error.details()
    return "OK", ""


def ask(channel: Any, name: str, timeout: float = 30.0, **fields: Any) -> Any:
    method = MESSAGES[name]
    call = channel.unary_unary(
        f"/{method.service}/{name}", request_serializer=method.request.SerializeToString,
        response_deserializer=method.response.FromString,
    )  # fmt: skip
    return call(method.request(**fields), timeout=timeout)


def sleep(channel: Any, seconds: float, timeout: float = 30.0) -> Any:
    tensor = {"name": "seconds", "datatype": "FP32", "shape": [1], "contents": {"fp32_contents": [seconds]}}
    return ask(channel, "ModelInfer", timeout, model_name="slow", inputs=[tensor])


def test_every_method_asks_for_the_token_also_those_that_are_not_there(tmp_path: Path, slow: Path) -> None:
    options = (
        "--token-file", str(secret(tmp_path / "client", CLIENT)), "--admin-grpc-port", "0", "--admin-port", "0",
        "--admin-token-file", str(secret(tmp_path / "operator", OPERATOR)),
    )  # fmt: skip
    paths = [f"/{method.service}/{method.name}" for method in METHODS] + ["/inference.Other/Method", "/x"]
    with Served(slow, directory=tmp_path / "run", options=options) as served:
        for what, right, wrong in (("grpc", CLIENT, OPERATOR), ("admin-grpc", OPERATOR, CLIENT)):
            with grpc.insecure_channel(served.addresses[what]) as channel:
                for path in paths:
                    for shown in ((), [("authorization", f"Bearer {wrong}")], [("authorization", right)]):
                        assert code(channel, path, shown)[0] == "UNAUTHENTICATED", (what, path, shown)
                    found = code(channel, path, [("authorization", f"Bearer {right}")])[0]
                    assert found != "UNAUTHENTICATED", (what, path)
        port = int(served.addresses["admin"].rpartition(":")[2])
        for path in ("/", "/v2", "/v2/health/live", "/v2/repository/index", "/v2/repository/models/slow/unload", "/x"):
            for token in ("", CLIENT):
                shown = {"authorization": f"Bearer {token}"} if token else {}
                assert asked(port, path, shown) == 401, path
        assert asked(port, "/v2/repository/index", {"authorization": f"Bearer {OPERATOR}"}) == 200
        for token in (CLIENT, OPERATOR):
            assert token not in served.stop()


def asked(port: int, path: str, headers: dict[str, str]) -> int:
    import http.client

    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("POST", path, b"", headers)
        return connection.getresponse().status
    finally:
        connection.close()


def test_a_control_plane_without_its_own_token_is_refused(tmp_path: Path, slow: Path) -> None:
    one = secret(tmp_path / "one", CLIENT)
    for words, said in (
        (("--token-file", one), "Add --admin-token-file"),
        (("--token-file", one, "--admin-token-file", one), "have the same token"),
        (("--token-file", one, "--host", "0.0.0.0"), "Add --admin-token-file"),
    ):
        for port in ("--admin-port", "--admin-grpc-port"):
            done = holdfast("serve", slow, "--dir", tmp_path / "run", port, 0, *words, cwd=tmp_path)
            assert done.returncode == 2 and said in done.stderr, done.stderr


def test_a_port_that_is_taken_is_said_and_a_second_server_cannot_share_it(served: Served, slow: Path) -> None:
    port = served.addresses["grpc"].rpartition(":")[2]
    done = holdfast("serve", slow, "--dir", slow.parent / "other", "--grpc-port", port, cwd=slow.parent)
    assert done.returncode == 2 and f"Port {port} of 127.0.0.1 cannot be used" in done.stderr
    assert "--grpc-port" in done.stderr


def test_no_grpc_where_none_is_wanted(tmp_path: Path, slow: Path) -> None:
    with Served(slow, directory=tmp_path / "run", options=("--grpc-port", "-1")) as served:
        assert list(served.addresses) == ["http"]


def test_tls_with_the_certificate_of_http(tmp_path: Path, slow: Path) -> None:
    certificate, key = tmp_path / "certificate", tmp_path / "key"
    self_signed(certificate, key)
    options = ("--certificate", str(certificate), "--key", str(key))
    with Served(slow, directory=tmp_path / "run", options=options) as served:
        assert served.addresses["http"].startswith("https://")
        trusted = grpc.ssl_channel_credentials(certificate.read_bytes())
        with grpc.secure_channel(served.addresses["grpc"], trusted) as channel:
            assert ask(channel, "ServerReady").ready
        with grpc.insecure_channel(served.addresses["grpc"]) as channel, pytest.raises(grpc.RpcError):
            ask(channel, "ServerLive", timeout=3.0)


def self_signed(certificate: Path, key: Path) -> None:
    x509 = pytest.importorskip("cryptography.x509")
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    secret = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    addresses = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    builder = x509.CertificateBuilder(name, name, secret.public_key(), x509.random_serial_number())
    made = (
        builder.not_valid_before(now - datetime.timedelta(days=1)).not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(addresses, critical=False).sign(secret, hashes.SHA256())
    )  # fmt: skip
    certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    key.write_bytes(secret.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ))  # fmt: skip


def test_what_is_malformed_or_strange_is_refused_and_harms_nobody(served: Served) -> None:
    address = served.addresses["grpc"]
    with grpc.insecure_channel(address) as channel:
        infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        with pytest.raises(grpc.RpcError) as error:
            infer(b"\xff\xff\xff", timeout=10)
        assert error.value.code().name == "INVALID_ARGUMENT"
        assert error.value.details() == "message: is no inference.ModelInferRequest"
        assert code(channel, "/x.Y/Z") == ("UNIMPLEMENTED", "There is no method /x.Y/Z.")
        host, _, port = address.rpartition(":")
        for sent in (b"", b"GET / HTTP/1.1\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 100):
            with socket.create_connection((host, int(port)), timeout=10) as raw:
                raw.sendall(sent)
        assert ask(channel, "ServerReady").ready


def test_health(served: Served) -> None:
    with grpc.insecure_channel(served.addresses["grpc"]) as channel:
        for service in ("", "inference.GRPCInferenceService", "slow"):
            assert ask(channel, "Check", service=service).status == 1
        with pytest.raises(grpc.RpcError) as error:
            ask(channel, "Check", service="other")
        assert error.value.code().name == "NOT_FOUND"
        method = MESSAGES["Watch"]
        watch = channel.unary_stream(
            f"/{method.service}/Watch", request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString,
        )  # fmt: skip
        unknown = watch(method.request(service="other"), timeout=30)
        assert next(unknown).status == 3
        unknown.cancel()
        seen = watch(method.request(), timeout=60)
        assert next(seen).status == 1
        served.stop()
        assert [one.status for one in seen] == [2]  # told, and then over without an error


def test_alive_ready_and_taken_are_three_answers(tmp_path: Path) -> None:
    """A request that cannot be answered in time is not taken; the server is alive and ready all the same."""
    steady = write_model(tmp_path / "steady", STEADY)
    tensor = {"name": "x", "datatype": "FP32", "shape": [1], "contents": {"fp32_contents": [1.0]}}
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1]}]}
    hurried = json.dumps({**body, "parameters": {"timeout": 1000}}).encode()
    with (
        Served(steady, directory=tmp_path / "run", options=("--slo", "1s")) as served,
        grpc.insecure_channel(served.addresses["grpc"]) as channel,
    ):
        told = served.ask("/v2/models/steady/infer", hurried)
        assert told.status == 503 and told.headers["retry-after"] == "1" and "1 ms are allowed" in told.json["error"]
        with pytest.raises(grpc.RpcError) as error:
            parameters = {"timeout": {"int64_param": 1000}}
            ask(channel, "ModelInfer", model_name="steady", inputs=[tensor], parameters=parameters)
        assert error.value.code().name == "UNAVAILABLE" and "1 ms are allowed" in error.value.details()
        assert "retry-after" in dict(error.value.trailing_metadata())
        for path in ("live", "ready"):
            assert served.ask(f"/v2/health/{path}").json == {"live": True, "ready": True}
        assert ask(channel, "ServerReady").ready and ask(channel, "ServerLive").live
        assert served.ask("/v2/models/steady/infer", json.dumps(body).encode()).status == 200
        assert ask(channel, "ModelInfer", model_name="steady", inputs=[tensor]).model_version == "1"


def test_the_end_has_two_phases(served: Served, begun: Path) -> None:
    """First nothing more is taken, and both ways still say so; then nobody listens. What was taken is answered."""
    told: list[Any] = []
    with grpc.insecure_channel(served.addresses["grpc"]) as channel:
        asking = threading.Thread(target=lambda: told.append(sleep(channel, 2.0)))
        asking.start()
        until(begun.exists, "the model to be at it")
        served.process.terminate()

        def ready() -> Answered:
            return served.ask("/v2/health/ready")

        until(lambda: ready().status == 503, "the server to say that it is not ready")
        assert ready().json == {"live": True, "ready": False}
        assert ask(channel, "ServerLive").live and not ask(channel, "ServerReady").ready
        assert ask(channel, "Check").status == 2
        with pytest.raises(grpc.RpcError) as error:
            sleep(channel, 0.0)
        assert error.value.code().name == "UNAVAILABLE" and "is being shut down" in error.value.details()
        trailing = dict(error.value.trailing_metadata())
        assert trailing["retry-after"] == "1" and trailing["grpc-retry-pushback-ms"] == "1000"
        asking.join()
        assert [answer.model_version for answer in told] == ["1"]
        assert served.process.wait(30) == 0
        assert code(channel, "/inference.GRPCInferenceService/ServerLive")[0] == "UNAVAILABLE"
