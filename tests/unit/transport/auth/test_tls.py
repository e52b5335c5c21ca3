"""The run's own certificate authority. What it does to connections is in the tests of those (`dial`, `stream`)."""

from __future__ import annotations

import ssl
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography import x509

from holdfast.errors import UsageError
from holdfast.transport.auth import token
from holdfast.transport.auth.credentials import Credentials, secrets_for
from holdfast.transport.auth.tls import Authority, Material, client_context, server_context
from tests.unit.transport.lines import nothing_left

AUTHORITY = Authority("run")
MATERIAL = AUTHORITY.issue("host")


@pytest.mark.parametrize("make", [server_context, client_context])
def test_both_sides_ask_for_a_certificate_of_this_run_and_of_nobody_else(make) -> None:
    with nothing_left():
        context = make(MATERIAL)
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.minimum_version is ssl.TLSVersion.TLSv1_3
    assert not context.check_hostname
    assert [dict(pair[0] for pair in found["subject"]) for found in context.get_ca_certs()] == [
        {"commonName": "holdfast run run"}
    ]


def test_no_clock_can_disagree_with_a_certificate() -> None:
    for text in (MATERIAL.authority, MATERIAL.certificate):
        certificate = x509.load_pem_x509_certificate(text.encode())
        assert certificate.not_valid_before_utc.year == 2000
        assert certificate.not_valid_after_utc.year == 9999


def test_a_host_s_certificate_can_make_no_others() -> None:
    certificate = x509.load_pem_x509_certificate(MATERIAL.certificate.encode())
    assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert not certificate.extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign
    authority = x509.load_pem_x509_certificate(MATERIAL.authority.encode())
    certificate.verify_directly_issued_by(authority)


def test_every_host_has_a_key_of_its_own_and_the_authority_s_is_not_given_away() -> None:
    other = AUTHORITY.issue("other")
    assert other.authority == MATERIAL.authority
    assert other.key != MATERIAL.key and other.certificate != MATERIAL.certificate
    for text in (MATERIAL.authority, MATERIAL.certificate):
        assert "PRIVATE KEY" not in text
    assert MATERIAL.key.count("PRIVATE KEY") == 2


def test_two_runs_do_not_know_each_other() -> None:
    assert Authority("run").issue("host").authority != MATERIAL.authority


@pytest.mark.parametrize(
    "material",
    [
        Material("", MATERIAL.certificate, MATERIAL.key),
        Material(MATERIAL.authority, MATERIAL.certificate, "no key"),
        Material(MATERIAL.authority, MATERIAL.certificate, AUTHORITY.issue("other").key),
    ],
)
def test_texts_that_do_not_fit_together_are_refused(material: Material) -> None:
    with pytest.raises(UsageError) as raised:
        _ = Credentials("t", material).server
    assert str(raised.value).startswith("The certificates of this run cannot be used: ")
    assert str(raised.value).endswith(". Copy the file `credentials` from the run's directory again.")


def test_what_a_file_has_is_taken_and_what_it_lacks_is_made(tmp_path: Path) -> None:
    plain, whole = tmp_path / "token", tmp_path / "credentials"
    token.write(plain, "t" * 32)
    ours, theirs = secrets_for("run", plain, tls=True)
    assert ours.token == theirs.token == "t" * 32
    assert ours.tls is not None and theirs.tls is not None and ours.tls.key != theirs.tls.key
    theirs.write(whole)
    assert secrets_for("run", whole, tls=True) == (theirs, theirs)
    assert secrets_for("run", plain, tls=False).ours.tls is None
    with pytest.raises(UsageError) as raised:
        secrets_for("run", whole, tls=False)
    assert str(raised.value) == (
        f"{whole} has certificates, but TLS was not asked for. Use --tls (tls=True), or a plain token."
    )


def test_without_tls_there_is_no_context() -> None:
    assert Credentials("t").server is None
    assert Credentials("t").client is None


def test_without_cryptography_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(UsageError) as raised:
        Authority("run")
    assert str(raised.value) == (
        "--tls needs the package `cryptography` to make certificates, and it is not installed. Install it: "
        "pip install 'holdfast[tls]'."
    )
    server_context(MATERIAL)  # using them needs nothing


def test_cryptography_is_imported_only_to_make_certificates() -> None:
    code = (
        "import sys, holdfast.transport.auth.listener, holdfast.transport.auth.dial, holdfast.transport.channel; "
        "print([name for name in sys.modules if name.startswith(('cryptography', 'torch'))])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"
