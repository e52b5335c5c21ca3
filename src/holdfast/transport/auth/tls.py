"""TLS between hosts: a certificate authority that lives as long as its run, and signs for that run only.

The launcher makes the authority in memory; its key is never written and dies with the process. Every host has a
certificate of it, and both sides of a connection ask for the other's: TLS 1.3 only, nothing of the system's own
authorities is trusted, and no host names are compared, because who holds a certificate of this authority belongs to
the run, wherever it is. Certificates have no date that a clock could disagree with; what ends them is the end of the
run.

Making certificates needs the package `cryptography` (`holdfast[tls]`); using them needs nothing but Python, so a
machine that joins need not have it.
"""

from __future__ import annotations

import contextlib
import os
import ssl
from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from holdfast.errors import UsageError

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

__all__ = ["Authority", "Material", "client_context", "server_context", "why"]


class Material(msgspec.Struct, frozen=True):
    """What one host needs to speak TLS: three texts in PEM. The last one is secret."""

    authority: str
    certificate: str
    key: str

    def __repr__(self) -> str:
        return "Material(...)"


def server_context(material: Material) -> ssl.SSLContext:
    """For the side that listens. Raises UsageError where the texts do not fit together."""
    context = _context(ssl.PROTOCOL_TLS_SERVER, material)
    context.num_tickets = 0  # nobody resumes: a connection lives as long as its generation
    return context


def client_context(material: Material) -> ssl.SSLContext:
    """For the side that calls. Raises UsageError where the texts do not fit together."""
    return _context(ssl.PROTOCOL_TLS_CLIENT, material)


def why(error: ssl.SSLError) -> str:
    """What went wrong, in words: OpenSSL writes it in capitals."""
    return (error.reason or str(error)).replace("_", " ").lower()


def _context(protocol: int, material: Material) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        context.load_verify_locations(cadata=material.authority)
        with _unnamed(material.certificate + material.key) as path:
            context.load_cert_chain(path)
    except (ssl.SSLError, ValueError) as error:
        cause = why(error) if isinstance(error, ssl.SSLError) else error
        raise UsageError(
            f"The certificates of this run cannot be used: {cause}. Copy the file `credentials` from the run's "
            "directory again."
        ) from None
    return context


@contextlib.contextmanager
def _unnamed(text: str) -> Iterator[str]:
    """A path to the text, in memory: the key never touches a disk."""
    fd = os.memfd_create("holdfast-tls", os.MFD_CLOEXEC)
    try:
        os.write(fd, text.encode())
        os.lseek(fd, 0, os.SEEK_SET)
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)


class Authority:
    """The certificate authority of one run. Raises UsageError where `cryptography` is not installed."""

    def __init__(self, run: str) -> None:
        _ask_for_cryptography()
        from cryptography.hazmat.primitives.asymmetric import ec

        self._run = run
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._certificate = self._sign(f"holdfast run {run}", self._key, authority=True)

    def issue(self, name: str) -> Material:
        """A key pair and its certificate for one host, or for all that join with the same file."""
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ec

        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._sign(name, key, authority=False)
        pem = serialization.Encoding.PEM
        secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        return Material(
            self._certificate.public_bytes(pem).decode(), certificate.public_bytes(pem).decode(), secret.decode()
        )

    def _sign(self, name: str, key: ec.EllipticCurvePrivateKey, *, authority: bool) -> x509.Certificate:
        from datetime import datetime

        from cryptography import x509
        from cryptography.hazmat.primitives import hashes
        from cryptography.x509.oid import NameOID

        def called(text: str) -> x509.Name:
            return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64] or "holdfast")])

        own = key.public_key()
        issuer = self._key.public_key()
        builder = (
            x509.CertificateBuilder()
            .subject_name(called(name))
            .issuer_name(called(f"holdfast run {self._run}"))
            .public_key(own)
            .serial_number(x509.random_serial_number())
            # RFC 5280: the first has always been, the second means "no end".
            .not_valid_before(datetime(2000, 1, 1))
            .not_valid_after(datetime(9999, 12, 31, 23, 59, 59))
            .add_extension(x509.BasicConstraints(ca=authority, path_length=0 if authority else None), critical=True)
            .add_extension(_usage(authority), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(own), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer), critical=False)
        )
        return builder.sign(self._key, hashes.SHA256())


def _usage(authority: bool) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not authority,
        key_cert_sign=authority,
        crl_sign=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _ask_for_cryptography() -> None:
    try:
        import cryptography  # noqa: F401
    except ImportError:
        raise UsageError(
            "--tls needs the package `cryptography` to make certificates, and it is not installed. Install it: "
            "pip install 'holdfast[tls]'."
        ) from None
