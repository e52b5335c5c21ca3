"""Data sets by name: the digits that ship, Fashion-MNIST wherever it lies, and text."""

from __future__ import annotations

import functools
import gzip
import hashlib
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from holdfast.data import fashion_mnist
from holdfast.data.dataset import Dataset
from holdfast.data.sources import SOURCES, dataset
from holdfast.data.text import Alphabet, TextWindows
from holdfast.errors import ResourceError, UsageError

# ---------------------------------------------------------------- the registry


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(UsageError) as refused:
        dataset("fashion_mnits")
    assert str(refused.value) == (
        "There is no data set 'fashion_mnits'. Did you mean 'fashion-mnist'? Known are: digits, fashion-mnist."
    )
    with pytest.raises(UsageError, match=r"^There is no data set 'x'. Known are: digits, fashion-mnist.$"):
        dataset("x")


def test_an_unknown_split_is_refused() -> None:
    with pytest.raises(UsageError, match=r"digits has no split 'dev'. Use one of: train, test."):
        dataset("digits", "dev")


def test_a_source_is_added_by_putting_it_into_the_dict(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Dataset(np.zeros((3, 2), np.float32), np.zeros(3, np.int64), name="mine")
    monkeypatch.setitem(SOURCES, "mine", lambda split, root: made)
    assert dataset("mine") is made


def test_looking_at_data_imports_no_torch() -> None:
    code = "import sys, holdfast.data.sources as s; len(s.dataset('digits')); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# ---------------------------------------------------------------- digits, and what a Dataset is


def test_digits_are_split_for_ever() -> None:
    train, test = dataset("digits"), dataset("digits", "test")
    assert (len(train), len(test)) == (1437, 360)
    assert np.bincount(test.labels).min() >= 25
    for part in (train, test):
        assert part.features.dtype == np.float32
        assert part.features.shape[1:] == (1, 8, 8)
        assert part.labels.dtype == np.int64
        assert (part.features.min(), part.features.max()) == (0.0, 1.0)
    stored = hashlib.sha256(train.features.tobytes() + train.labels.tobytes()).hexdigest()
    assert stored == "e4f07e7eda87509aa26ccd62eb5c56eafb0b17fa375858ade2e7bed9250b2ee2"


def test_digits_take_no_directory(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="takes no directory"):
        dataset("digits", root=tmp_path)


def test_a_sample_is_two_tensors_and_a_batch_is_the_same_samples() -> None:
    data = dataset("digits")
    image, label = data[7]
    assert (image.dtype, image.shape, label.dtype, label.shape) == (torch.float32, (1, 8, 8), torch.int64, ())
    for (x, y), n in zip(data.__getitems__([7, 3, 7]), [7, 3, 7], strict=True):
        assert torch.equal(x, data[n][0])
        assert torch.equal(y, data[n][1])
    x, y = next(iter(DataLoader(data, batch_size=64)))
    assert torch.equal(x, torch.from_numpy(data.features[:64]))
    assert torch.equal(y, torch.from_numpy(data.labels[:64]))


def test_the_head_shares_memory_and_knows_its_limits() -> None:
    data = dataset("digits")
    head = data.head(100)
    assert len(head) == 100
    assert np.shares_memory(head.features, data.features)
    assert data.head(None) is data
    with pytest.raises(UsageError, match=r"digits has 1437 samples; cannot take 1438. Take 1 to 1437."):
        data.head(1438)


def test_a_dataset_travels_to_a_loader_process_without_its_tensors() -> None:
    data = dataset("digits").head(4)
    first = data[0]
    again = pickle.loads(pickle.dumps(data))
    assert again._tensors is None
    assert torch.equal(again[0][0], first[0])


def test_features_and_labels_must_belong_together() -> None:
    with pytest.raises(UsageError, match="mine has 3 samples but 2 labels"):
        Dataset(np.zeros((3, 2)), np.zeros(2, np.int64), name="mine")


# ---------------------------------------------------------------- Fashion-MNIST


@pytest.fixture
def small_files(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """Fashion-MNIST with 6 images to train on and 4 to test: the unpacked files by name."""
    random = np.random.default_rng(0)
    unpacked, table = {}, {}
    for split, count, stem in (("train", 6, "train"), ("test", 4, "t10k")):
        files = []
        for name, shape in ((f"{stem}-images-idx3-ubyte", (count, 28, 28)), (f"{stem}-labels-idx1-ubyte", (count,))):
            header = bytes([0, 0, 8, len(shape)]) + b"".join(n.to_bytes(4, "big") for n in shape)
            body = random.integers(0, 10 if len(shape) == 1 else 256, shape, np.uint8).tobytes()
            unpacked[name] = header + body
            files.append(fashion_mnist._DataFile(name, shape, hashlib.sha256(header + body).hexdigest()))
        table[split] = tuple(files)
    monkeypatch.setattr(fashion_mnist, "_FILES", table)
    return unpacked


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No Debian package, an empty cache; returns the cache."""
    monkeypatch.setattr(fashion_mnist, "DEBIAN", tmp_path / "debian")
    monkeypatch.setattr(fashion_mnist, "CACHE", tmp_path / "cache")
    return tmp_path / "cache"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, list[str]]]:
    """A web server on loopback in the place of GitHub: its directory and the paths it was asked for."""
    directory, asked = tmp_path / "www", []
    directory.mkdir()

    class Handler(SimpleHTTPRequestHandler):
        def log_request(self, code: object = "-", size: object = "-") -> None:
            asked.append(self.path)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(directory))) as http:
        thread = threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        monkeypatch.setattr(fashion_mnist, "URL", f"http://127.0.0.1:{http.server_port}")
        yield directory, asked
        http.shutdown()
        thread.join()


def put(files: dict[str, bytes], place: Path, *, packed: bool) -> None:
    place.mkdir(exist_ok=True)
    for name, data in files.items():
        (place / (f"{name}.gz" if packed else name)).write_bytes(gzip.compress(data) if packed else data)


@pytest.mark.parametrize("packed", [True, False])
def test_files_in_a_given_directory_are_read(small_files: dict[str, bytes], tmp_path: Path, packed: bool) -> None:
    put(small_files, tmp_path, packed=packed)
    train, test = dataset("fashion-mnist", root=tmp_path), dataset("fashion-mnist", "test", root=tmp_path)
    assert (len(train), len(test)) == (6, 4)
    assert train.features.dtype == np.float32
    assert train.features.shape == (6, 1, 28, 28)
    raw = np.frombuffer(small_files["train-images-idx3-ubyte"], np.uint8, offset=16)
    assert np.array_equal(train.features.ravel(), raw.astype(np.float32) / np.float32(255))
    assert train.labels.dtype == np.int64
    assert train.labels.tolist() == list(small_files["train-labels-idx1-ubyte"][8:])
    assert train.classes[9] == "Ankle boot"


def test_a_given_directory_without_the_files_is_refused_and_nothing_else_is_tried(
    small_files: dict[str, bytes], nowhere: Path, tmp_path: Path
) -> None:
    put(small_files, nowhere, packed=True)
    with pytest.raises(UsageError) as refused:
        dataset("fashion-mnist", root=tmp_path)
    assert "has no train-images-idx3-ubyte and no train-labels-idx1-ubyte (plain or .gz)" in str(refused.value)


def test_the_debian_package_comes_before_the_cache(small_files: dict[str, bytes], nowhere: Path) -> None:
    put(small_files, fashion_mnist.DEBIAN, packed=True)
    put(dict.fromkeys(small_files, b"never read"), nowhere, packed=True)
    assert len(dataset("fashion-mnist")) == 6


def test_a_download_is_checked_stored_and_used_the_next_time(
    small_files: dict[str, bytes], nowhere: Path, server: tuple[Path, list[str]], capfd: pytest.CaptureFixture[str]
) -> None:
    directory, asked = server
    put(small_files, directory, packed=True)
    assert len(dataset("fashion-mnist")) == 6
    assert len(dataset("fashion-mnist")) == 6
    assert asked == ["/train-images-idx3-ubyte.gz", "/train-labels-idx1-ubyte.gz"]
    assert sorted(path.name for path in nowhere.iterdir()) == [
        "train-images-idx3-ubyte.gz",
        "train-labels-idx1-ubyte.gz",
    ]
    assert "checksum ok" in capfd.readouterr().err


def test_workers_that_start_together_download_once(
    small_files: dict[str, bytes], nowhere: Path, server: tuple[Path, list[str]]
) -> None:
    directory, asked = server
    put(small_files, directory, packed=True)
    loaded: list[int] = []
    threads = [threading.Thread(target=lambda: loaded.append(len(dataset("fashion-mnist")))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert loaded == [6] * 4
    assert len(asked) == 2


@pytest.mark.parametrize(
    "sent",
    [b"not gzip", gzip.compress(b"other"), gzip.compress(b"cut" * 999)[:-9], None],
    ids=["no-gzip", "other-content", "cut-short", "not-found"],
)
def test_a_bad_download_leaves_nothing_and_says_what_to_do(
    small_files: dict[str, bytes], nowhere: Path, server: tuple[Path, list[str]], sent: bytes | None
) -> None:
    directory, _ = server
    if sent is not None:
        (directory / "train-images-idx3-ubyte.gz").write_bytes(sent)
    with pytest.raises(UsageError) as refused:
        dataset("fashion-mnist")
    message = str(refused.value)
    assert message.startswith("Fashion-MNIST is not on this machine and could not be downloaded: http://127.0.0.1")
    assert "apt install dataset-fashion-mnist" in message
    assert "'digits'" in message
    assert str(nowhere) in message
    assert list(nowhere.iterdir()) == []


def test_without_a_network_the_message_names_the_cause(
    small_files: dict[str, bytes], nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fashion_mnist, "URL", "http://127.0.0.1:9")  # the discard port: nobody listens
    with pytest.raises(UsageError, match="Connection refused"):
        dataset("fashion-mnist")


def test_a_cache_that_cannot_be_made_is_a_resource_error(
    small_files: dict[str, bytes], nowhere: Path, tmp_path: Path
) -> None:
    nowhere.write_text("a file where the directory should be")
    with pytest.raises(ResourceError, match=r"cannot be stored in .*cache: File exists"):
        dataset("fashion-mnist")


@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: b"\0\0\x08\x01" + data[4:], lambda data: b""])
def test_a_damaged_file_is_named(small_files: dict[str, bytes], tmp_path: Path, damage: object) -> None:
    small_files["train-images-idx3-ubyte"] = damage(small_files["train-images-idx3-ubyte"])  # type: ignore[operator]
    put(small_files, tmp_path, packed=True)
    with pytest.raises(UsageError, match="is not the train-images-idx3-ubyte of Fashion-MNIST"):
        dataset("fashion-mnist", root=tmp_path)


def test_a_file_that_is_no_gzip_is_named(small_files: dict[str, bytes], tmp_path: Path) -> None:
    put(small_files, tmp_path, packed=True)
    (tmp_path / "train-labels-idx1-ubyte.gz").write_bytes(b"no gzip")
    with pytest.raises(UsageError, match=r"train-labels-idx1-ubyte.gz cannot be read: .*Delete it"):
        dataset("fashion-mnist", root=tmp_path)


@pytest.mark.skipif(not fashion_mnist.DEBIAN.is_dir(), reason="needs the Debian package dataset-fashion-mnist")
def test_the_real_files_have_the_checksums_we_expect() -> None:
    for files in fashion_mnist._FILES.values():
        for file in files:
            data = gzip.decompress((fashion_mnist.DEBIAN / f"{file.name}.gz").read_bytes())
            assert hashlib.sha256(data).hexdigest() == file.sha256
    test = dataset("fashion-mnist", "test", root=fashion_mnist.DEBIAN)
    assert np.bincount(test.labels).tolist() == [1000] * 10


# ---------------------------------------------------------------- text


def test_an_alphabet_spells_what_it_was_made_of() -> None:
    letters = Alphabet.of("banana")
    assert (letters.characters, len(letters)) == ("abn", 3)
    assert letters.encode("nab").tolist() == [2, 0, 1]
    assert letters.decode([1, 0, 2]) == "ban"
    with pytest.raises(UsageError, match="The character 'x' is not in the alphabet of 3 characters"):
        letters.encode("nax")


def test_every_window_is_a_sample_and_its_target_is_one_further() -> None:
    windows = TextWindows(np.arange(10), block_size=4)
    assert len(windows) == 6
    for n, (x, y) in enumerate(windows.__getitems__(range(6))):
        assert x.tolist() == list(range(n, n + 4))
        assert y.tolist() == list(range(n + 1, n + 5))
    with pytest.raises(IndexError):
        windows[6]
    assert x.dtype == torch.int64


def test_a_stride_takes_every_nth_window() -> None:
    windows = TextWindows(np.arange(10), block_size=4, stride=4)
    assert [windows[n][0].tolist() for n in range(len(windows))] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert pickle.loads(pickle.dumps(windows))[1][1].tolist() == [5, 6, 7, 8]


@pytest.mark.parametrize(("block_size", "stride"), [(0, 1), (4, 0), (10, 1)])
def test_windows_that_cannot_be_are_refused(block_size: int, stride: int) -> None:
    with pytest.raises(UsageError):
        TextWindows(np.arange(10), block_size=block_size, stride=stride)
