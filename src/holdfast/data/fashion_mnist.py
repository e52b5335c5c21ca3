"""Fashion-MNIST: 70,000 grey images of clothes, 28x28, ten classes (Zalando, MIT licence).

Where the files are looked for, first come first served:

1. the directory that was given, and then nowhere else: what was asked for is used or refused;
2. the Debian package `dataset-fashion-mnist`;
3. the cache, `~/.cache/holdfast/fashion-mnist`;
4. the network, into the cache: checked, then moved into place, so a file there is a whole file.

Checksums are of the *unpacked* bytes: Debian's files and Zalando's differ in their gzip headers only.
"""

from __future__ import annotations

import errno
import fcntl
import gzip
import hashlib
import os
import sys
import urllib.request
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from holdfast.data.dataset import Dataset
from holdfast.errors import ResourceError, UsageError
from holdfast.quantities import Duration

__all__ = ["CLASSES", "download", "load"]

DEBIAN = Path("/usr/share/datasets/fashion-mnist")
CACHE = Path("~/.cache/holdfast/fashion-mnist")
URL = "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion"
#: How long the server may say nothing.
SILENCE = Duration("20s")

CLASSES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _DataFile:
    name: str
    shape: tuple[int, ...]
    sha256: str  # of the unpacked bytes


_FILES = {
    "train": (
        _DataFile(
            "train-images-idx3-ubyte",
            (60000, 28, 28),
            "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        ),
        _DataFile(
            "train-labels-idx1-ubyte", (60000,), "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9"
        ),
    ),
    "test": (
        _DataFile(
            "t10k-images-idx3-ubyte",
            (10000, 28, 28),
            "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        ),
        _DataFile(
            "t10k-labels-idx1-ubyte", (10000,), "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34"
        ),
    ),
}


def load(split: str, root: Path | None = None) -> Dataset:
    """The split as float32 images (N, 1, 28, 28) in [0, 1] and int64 labels."""
    images, labels = _FILES[split]
    where = _find(split, root)
    pixels = _read(images, where)
    features = pixels[:, None].astype(np.float32)
    features /= np.float32(255)
    return Dataset(features, _read(labels, where).astype(np.int64), name="fashion-mnist", classes=CLASSES)


def _find(split: str, root: Path | None) -> Path:
    """The directory that has this split, after a download if need be."""
    cache = CACHE.expanduser()
    if root is not None:
        if missing := _missing(root, split):
            raise UsageError(
                f"{root} has no {' and no '.join(missing)} (plain or .gz). Put the files of Fashion-MNIST there, "
                f"or leave the directory out to have them searched and downloaded."
            )
        return root
    for place in (DEBIAN, cache):
        if not _missing(place, split):
            return place
    try:
        with _alone_in(cache):
            if _missing(cache, split):  # somebody else may have fetched it while we waited
                for file in _FILES[split]:
                    download(file, cache, url=URL)
    except _DownloadFailed as failed:
        raise UsageError(
            f"Fashion-MNIST is not on this machine and could not be downloaded: {failed}. Looked in {DEBIAN}, "
            f"{cache} and {URL}. Install it (apt install dataset-fashion-mnist), give a directory that holds "
            f"the four files, or use the data set 'digits', which ships with holdfast."
        ) from failed
    return cache


def _missing(place: Path, split: str) -> list[str]:
    """Names of the split's files that are not in this place."""
    return [file.name for file in _FILES[split] if _path(file, place) is None]


def _path(file: _DataFile, place: Path) -> Path | None:
    candidates = (place / file.name, place / f"{file.name}.gz")
    return next((path for path in candidates if path.is_file()), None)


def _read(file: _DataFile, place: Path) -> NDArray[np.uint8]:
    """The array in an IDX file: magic 0, 0, 8 (unsigned bytes), rank; big-endian sizes; data."""
    path = _path(file, place)
    assert path is not None, f"{file.name} vanished from {place}"
    try:
        raw = path.read_bytes()
        data = gzip.decompress(raw) if path.suffix == ".gz" else raw
    except (EOFError, zlib.error, OSError) as problem:
        raise UsageError(f"{path} cannot be read: {problem}. Delete it, so that it is fetched again.") from problem
    rank = len(file.shape)
    header = bytes([0, 0, 8, rank]) + b"".join(size.to_bytes(4, "big") for size in file.shape)
    if not data.startswith(header) or len(data) != len(header) + int(np.prod(file.shape)):
        raise UsageError(
            f"{path} is not the {file.name} of Fashion-MNIST ({len(data)} bytes unpacked, expected "
            f"{len(header) + int(np.prod(file.shape))}). Delete it, so that it is fetched again."
        )
    return np.frombuffer(data, np.uint8, offset=len(header)).reshape(file.shape)


# ---------------------------------------------------------------- the network


class _DownloadFailed(Exception):
    """Why the network did not help; becomes part of the sentence the user sees."""


def download(file: _DataFile, cache: Path, *, url: str, silence: Duration = SILENCE) -> Path:
    """Fetch one file into the cache, check it and put it in place at once or not at all."""
    source, target = f"{url}/{file.name}.gz", cache / f"{file.name}.gz"
    part = target.with_suffix(".part")  # one name: only one process at a time is here, and it writes it anew
    _say(f"fashion-mnist: downloading {source}")
    try:
        try:
            with urllib.request.urlopen(source, timeout=silence.seconds) as response:
                packed = _receive(response)
        except (OSError, HTTPException, ValueError) as problem:
            raise _DownloadFailed(f"{source}: {getattr(problem, 'reason', None) or problem}") from problem
        try:
            digest = hashlib.sha256(gzip.decompress(packed)).hexdigest()
        except (EOFError, zlib.error, OSError) as problem:
            raise _DownloadFailed(f"{source} sent {len(packed)} bytes that are no gzip file ({problem})") from problem
        if digest != file.sha256:
            raise _DownloadFailed(f"{source} has SHA-256 {digest[:16]}... unpacked, expected {file.sha256[:16]}...")
        try:
            with part.open("wb") as stored:
                stored.write(packed)
                stored.flush()
                os.fsync(stored.fileno())
            part.replace(target)
        except OSError as problem:
            raise _cannot_store(cache, problem) from problem
    finally:
        part.unlink(missing_ok=True)
    _say(f"fashion-mnist: {target.name} is in {cache} ({len(packed) / 1e6:.1f} MB, checksum ok)")
    return target


def _receive(response: HTTPResponse) -> bytes:
    """The whole body; on a terminal, with one line that counts."""
    total, received = int(response.headers.get("Content-Length") or 0), bytearray()
    while chunk := response.read(1 << 20):
        received += chunk
        if sys.stderr.isatty():
            of = f" of {total / 1e6:.1f}" if total else ""
            print(f"\r  {len(received) / 1e6:.1f}{of} MB ", end="", file=sys.stderr, flush=True)
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr, flush=True)
    if len(received) < total:
        raise OSError(f"the connection closed after {len(received)} of {total} bytes")
    return bytes(received)


@contextmanager
def _alone_in(cache: Path) -> Iterator[None]:
    """Hold the cache directory, so that four workers which start together download once."""
    try:
        cache.mkdir(parents=True, exist_ok=True)
        directory = os.open(cache, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as problem:
        raise _cannot_store(cache, problem) from problem
    try:
        try:
            fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            # No limit of our own is needed: the holder's silence limit, or its death, frees the lock.
            _say(f"fashion-mnist: waiting for another process that downloads into {cache}")
            fcntl.flock(directory, fcntl.LOCK_EX)
        yield
    finally:
        os.close(directory)


def _cannot_store(cache: Path, problem: OSError) -> ResourceError:
    what = "the disk is full" if problem.errno in (errno.ENOSPC, errno.EDQUOT) else str(problem.strerror or problem)
    return ResourceError(
        f"Fashion-MNIST cannot be stored in {cache}: {what}. Make room (31 MB) or make it writable, "
        f"or give a directory that holds the four files."
    )


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
