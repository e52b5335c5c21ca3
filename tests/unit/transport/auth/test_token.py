"""Tokens and credentials: made at random, kept to oneself, never shown."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import UsageError
from holdfast.transport.auth import token
from holdfast.transport.auth.credentials import Credentials
from holdfast.transport.auth.proof import PROOF, prove, proven
from holdfast.transport.auth.tls import Material

TOKEN = "A" * 43
MATERIAL = Material("authority", "certificate", "key")


def test_a_token_is_256_random_bits() -> None:
    tokens = {token.make() for _ in range(100)}
    assert len(tokens) == 100
    assert {len(made) for made in tokens} == {43}  # 256 bits, six a character
    assert all(token.check(made, "here") == made for made in tokens)


def test_a_token_comes_back_from_its_file(tmp_path: Path) -> None:
    path = tmp_path / "token"
    token.write(path, TOKEN)
    assert Credentials.read(path).token == TOKEN


@pytest.mark.parametrize("umask", [0o000, 0o077, 0o777])
def test_only_its_owner_can_read_it(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        token.write(tmp_path / "token", TOKEN)
        Credentials(TOKEN, MATERIAL).write(tmp_path / "credentials")
    finally:
        os.umask(before)
    for name in ("token", "credentials"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600


def test_what_is_there_is_not_written_over(tmp_path: Path) -> None:
    path = tmp_path / "token"
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(FileExistsError):
        token.write(tmp_path / "link", TOKEN)  # nor written through
    assert not path.exists()
    token.write(path, TOKEN)
    with pytest.raises(FileExistsError):
        token.write(path, "B" * 43)
    assert Credentials.read(path).token == TOKEN


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644, 0o610])
def test_a_file_that_others_could_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "token"
    token.write(path, TOKEN)
    path.chmod(mode)
    with pytest.raises(UsageError) as raised:
        Credentials.read(path)
    assert str(raised.value) == (
        f"The credentials file {path} can be read by others (mode {mode:04o}). Make it yours alone: chmod 600 {path}."
    )


def test_what_is_no_token_file_is_said(tmp_path: Path) -> None:
    path = tmp_path / "nothing"
    with pytest.raises(UsageError) as raised:
        Credentials.read(path)
    assert str(raised.value) == (
        f"The credentials file {path} cannot be read: No such file or directory. Copy it from the run's directory."
    )
    os.mkfifo(path, 0o600)
    with pytest.raises(UsageError, match="is not a file"):
        Credentials.read(path)
    large = tmp_path / "large"
    token.write_private(large, "x" * 70_000)
    with pytest.raises(UsageError, match="has more than 65536 bytes"):
        Credentials.read(large)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "The token from HOLDFAST_TOKEN is empty. Copy the file `token` from the run's directory."),
        (
            "secret",
            "The token from HOLDFAST_TOKEN has 6 characters; at least 32 are needed, so that nobody can guess it. "
            "Leave it to `holdfast run` to make one.",
        ),
        (
            "two words " * 10,
            "What came from HOLDFAST_TOKEN is not a token: that is one word of 32 to 1024 plain characters. Copy the "
            "file `token` from the run's directory.",
        ),
    ],
)
def test_what_is_no_token_is_refused_and_not_shown(text: str, sentence: str) -> None:
    with pytest.raises(UsageError) as raised:
        token.check(text, "HOLDFAST_TOKEN")
    assert str(raised.value) == sentence


@pytest.mark.parametrize("text", ["ü" * 40, "x" * 1025, "a" * 20 + "\0" + "b" * 20, "a" * 20 + "\n" + "b" * 20])
def test_odd_tokens_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a token"):
        token.check(text, "here")


def test_white_space_around_it_is_of_no_matter() -> None:
    assert token.check(f"  {TOKEN}\r\n", "here") == TOKEN


@given(st.lists(st.binary(max_size=20), max_size=4), st.lists(st.binary(max_size=20), max_size=4))
def test_a_proof_is_for_these_parts_and_no_others(parts: list[bytes], others: list[bytes]) -> None:
    proof = prove(TOKEN, *parts)
    assert len(proof) == PROOF
    assert proven(TOKEN, proof, *parts)
    assert proven(TOKEN, proof, *others) == (parts == others)
    assert not proven("B" * 43, proof, *parts)
    assert not proven(TOKEN, proof[:-1], *parts)


def test_proofs_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []
    monkeypatch.setattr("hmac.compare_digest", lambda a, b: compared.append((a, b)) or a == b)
    assert not proven(TOKEN, b"wrong", b"part")
    assert len(compared) == 1


def test_credentials_come_back_from_their_file_and_are_never_shown(tmp_path: Path) -> None:
    for number, credentials in enumerate((Credentials(TOKEN), Credentials(TOKEN, MATERIAL))):
        credentials.write(tmp_path / str(number))
        assert Credentials.read(tmp_path / str(number)) == credentials
        assert repr(credentials) == "Credentials()"
    assert repr(MATERIAL) == "Material(...)"


def test_a_token_will_do_as_credentials(tmp_path: Path) -> None:
    token.write(tmp_path / "token", TOKEN)
    assert Credentials.read(tmp_path / "token") == Credentials(TOKEN)
    assert Credentials.parse(f"{TOKEN}\n", "HOLDFAST_TOKEN") == Credentials(TOKEN)
    with pytest.raises(UsageError, match=r"^The token from standard input is empty\."):
        Credentials.parse("\n", "standard input")


@pytest.mark.parametrize("text", ["{", "{}", '{"token": 5}', f'{{"token": "{TOKEN}", "more": 1}}'])
def test_credentials_that_cannot_be_used(tmp_path: Path, text: str) -> None:
    path = tmp_path / "credentials"
    token.write_private(path, text)
    with pytest.raises(UsageError) as raised:
        Credentials.read(path)
    assert str(raised.value).startswith(f"The credentials from the file {path} cannot be used: ")
    assert str(raised.value).endswith(". Copy the file `credentials` from the run's directory again.")
    assert TOKEN not in str(raised.value)
