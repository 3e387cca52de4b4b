"""Every published format is read as it is, and whatever is wrong with a file is said in a sentence that names it."""

from __future__ import annotations

import copy
import gzip
import io
import logging
import os
import pickle
import struct
import tarfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from scipy.io import savemat

import mapl.data.sources
from mapl import MaplError, Recipe
from mapl.data.arrays import mean_and_std
from mapl.data.augment import RELEASED
from mapl.data.dataset import Dataset, DataSettings, Images
from mapl.data.pickles import read_pickle
from mapl.data.published import CIFAR_CLASSES
from mapl.data.sources.cifar10 import ARCHIVE, BATCHES
from mapl.data.sources.cinic10 import CACHE, Cinic10
from mapl.data.sources.folder import Folder
from mapl.plugins import known

Bytes = NDArray[np.uint8]


def load(name: str, folder: Path | None) -> Dataset:
    dataset = known(mapl.data.sources)[name]().load(DataSettings(name=name, folder=folder))
    assert isinstance(dataset, Dataset)
    return dataset


def pixels(*shape: int, seed: int = 0) -> Bytes:
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def same(images: Images, expected: Bytes, labels: list[int]) -> bool:
    return torch.equal(images.pixels, torch.from_numpy(expected)) and images.labels.tolist() == labels


# CIFAR-10


def cifar(root: Path, protocol: int = 2) -> dict[str, Bytes]:
    """Six batches of four images, and what is in them."""
    content = {}
    for number, path in enumerate(BATCHES):
        data = pixels(4, 3072, seed=number)
        batch = {b"batch_label": b"x", b"labels": [number, 9, 0, 3], b"data": data, b"filenames": [b"a.png"] * 4}
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(pickle.dumps(batch, protocol))
        content[path] = data.reshape(4, 3, 32, 32)
    return content


def cifar_archive(root: Path) -> None:
    with tarfile.open(root / ARCHIVE, "w:gz") as tar:
        for path in reversed(BATCHES):
            tar.add(root / path, path)
            (root / path).unlink()


@pytest.mark.parametrize("protocol", [2, 4, 5])
@pytest.mark.parametrize("packed", [False, True])
def test_cifar10(tmp_path: Path, protocol: int, packed: bool) -> None:
    content = cifar(tmp_path, protocol)
    if packed:
        cifar_archive(tmp_path)
    dataset = load("cifar10", tmp_path)
    *train, test = content.values()
    assert same(dataset.train, np.concatenate(train), [k for i in range(5) for k in (i, 9, 0, 3)])
    assert same(dataset.test, test, [5, 9, 0, 3])
    assert dataset.shape == (3, 32, 32)
    assert dataset.class_names == CIFAR_CLASSES
    assert (dataset.mean, dataset.std) == ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def python_2_batch(data: Bytes, labels: list[int]) -> bytes:
    """A batch as numpy 1 pickled it under Python 2, which is how CIFAR-10 is published."""
    rows, columns = data.shape
    dtype = b"cnumpy\ndtype\n" + b"U\x02u1K\x00K\x01\x87R" + b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    array = b"cnumpy.core.multiarray\n_reconstruct\n" + b"cnumpy\nndarray\n" + b"K\x00\x85U\x01b\x87R"
    state = b"(K\x01K" + bytes([rows]) + b"M" + struct.pack("<H", columns) + b"\x86" + dtype + b"\x89T"
    array += state + struct.pack("<I", data.size) + data.tobytes() + b"tb"
    listed = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    return b"\x80\x02}(U\x06labels" + listed + b"U\x04data" + array + b"u."


def test_a_pickle_written_by_numpy_1_under_python_2(tmp_path: Path) -> None:
    content = cifar(tmp_path)
    for path, images in content.items():
        (tmp_path / path).write_bytes(python_2_batch(images.reshape(4, 3072), [3, 1, 4, 1]))
    assert same(load("cifar10", tmp_path).test, list(content.values())[-1], [3, 1, 4, 1])


class Hostile:
    def __init__(self, marker: Path):
        self.marker = marker

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (f"touch {self.marker}",)


@pytest.mark.parametrize("protocol", range(6))
def test_a_hostile_pickle_is_not_run(tmp_path: Path, protocol: int) -> None:
    cifar(tmp_path)
    marker = tmp_path / "marker"
    poisoned = tmp_path / "cifar-10-batches-py" / "data_batch_3"
    poisoned.write_bytes(pickle.dumps({b"data": Hostile(marker), b"labels": [1]}, protocol))
    with pytest.raises(MaplError, match=r"data_batch_3'.*pickle asks for \w+\.system.*nothing"):
        load("cifar10", tmp_path)
    assert not marker.exists()
    pickle.loads(poisoned.read_bytes())  # it is hostile indeed
    assert marker.exists()


@pytest.mark.parametrize(
    "program",
    [
        b"cbuiltins\neval\n(S'1'\ntR.",
        b"\x80\x04\x8c\x05numpy\x8c\x0endarray.tofile\x93.",
        b"c_codecs\ndecode\n(S'1'\ntR.",
        b"cnumpy.core.multiarray\nfromfile\n(S'x'\ntR.",
        b"Pa persistent id\n.",
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I1000000000000\ntS'b'\ntR.",
    ],
)
def test_a_pickle_reaches_nothing_but_data(program: bytes) -> None:
    with pytest.raises(MaplError, match="nothing of it was run"):
        read_pickle(program, "x")


def test_a_pickle_may_ask_for_no_other_codec_and_can_change_no_function() -> None:
    with pytest.raises(MaplError, match="rot13"):
        read_pickle(b"c_codecs\nencode\n(S'a'\nS'rot13'\ntR.", "x")
    assert read_pickle(b"c_codecs\nencode\n(Va\nVlatin1\ntR.", "x") == b"a"
    with pytest.raises(MaplError, match="cannot be read"):
        read_pickle(b"cnumpy\nndarray\n((I1000000000000\nttR.", "x")
    with pytest.raises(MaplError, match="cannot be read"):
        read_pickle(b"c_codecs\nencode\n(dS'evil'\nI1\nsb.", "x")
    assert not hasattr(mapl.data.pickles._latin1, "evil")


def test_a_batch_of_cifar_that_is_too_large_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cifar(tmp_path)
    monkeypatch.setattr(mapl.data.sources.cifar10, "LARGEST", 10_000)
    with pytest.raises(MaplError, match=r"data_batch_1.*10,000"):
        load("cifar10", tmp_path)


def change_cifar(change: Callable[[dict[bytes, Any]], object]) -> Callable[[Path], object]:
    def apply(root: Path) -> None:
        path = root / "cifar-10-batches-py" / "test_batch"
        batch = pickle.loads(path.read_bytes())
        change(batch)
        path.write_bytes(pickle.dumps(batch))

    return apply


def cut(path: str, length: int) -> Callable[[Path], object]:
    return lambda root: (root / path).write_bytes((root / path).read_bytes()[:length])


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (
            lambda root: (root / "cifar-10-batches-py/test_batch").unlink(),
            "missing: cifar-10-batches-py/test_batch; .*get",
        ),
        (cut("cifar-10-batches-py/test_batch", 100), "test_batch' is broken or cut off"),
        (cut("cifar-10-batches-py/test_batch", 0), "test_batch' is broken or cut off"),
        (
            change_cifar(lambda b: b.update({b"labels": [0, 1, 2, 10]})),
            r"test_batch' has the label 10 \(image number 3",
        ),
        (change_cifar(lambda b: b.update({b"labels": [0, 1, 2]})), "has 4 images, but labels of .* shape"),
        (change_cifar(lambda b: b.update({b"labels": [0, 1, 2, "x"]})), "labels that are not whole"),
        (change_cifar(lambda b: b.update({b"data": pixels(4, 784)})), r"images of shape \(784,\), not \(3072,\)"),
        (change_cifar(lambda b: b.update({b"data": np.zeros((4, 3072))})), "images of type float64"),
        (change_cifar(lambda b: b.update({b"data": pixels(0, 3072), b"labels": []})), "has no images"),
        (change_cifar(lambda b: b.pop(b"data")), "not a batch of CIFAR-10"),
        (lambda root: (root / "cifar-10-batches-py/test_batch").write_bytes(pickle.dumps([1])), "not a batch"),
    ],
)
def test_broken_cifar10(tmp_path: Path, damage: Callable[[Path], object], sentence: str) -> None:
    cifar(tmp_path)
    damage(tmp_path)
    with pytest.raises(MaplError, match=sentence):
        load("cifar10", tmp_path)


def test_broken_cifar10_archive(tmp_path: Path) -> None:
    cifar(tmp_path)
    (tmp_path / "cifar-10-batches-py" / "test_batch").rename(tmp_path / "elsewhere")
    with tarfile.open(tmp_path / ARCHIVE, "w:gz") as tar:
        tar.add(tmp_path / "cifar-10-batches-py", "cifar-10-batches-py")
    with pytest.raises(MaplError, match="does not contain cifar-10-batches-py/test_batch"):
        load("cifar10", tmp_path)
    cut(ARCHIVE, 2000)(tmp_path)
    with pytest.raises(MaplError, match=r"gz' is broken or cut off"):
        load("cifar10", tmp_path)


# MNIST and its kin


def idx(array: Bytes, kind: int = 8) -> bytes:
    return bytes((0, 0, kind, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def mnist(root: Path, folder: str = "MNIST/raw", packed: bool = True, **over: bytes) -> tuple[Bytes, Bytes]:
    train, test = pixels(6, 28, 28), pixels(3, 28, 28, seed=1)
    files = {
        "train-images-idx3-ubyte": idx(train),
        "train-labels-idx1-ubyte": idx(np.array([5, 0, 4, 1, 9, 2], np.uint8)),
        "t10k-images-idx3-ubyte": idx(test),
        "t10k-labels-idx1-ubyte": idx(np.array([7, 2, 1], np.uint8)),
    }
    (root / folder).mkdir(parents=True)
    for name, content in files.items():
        content = over.get(name.split("-ubyte")[0].replace("-", "_"), content)
        path = root / folder / (f"{name}.gz" if packed else name)
        path.write_bytes(gzip.compress(content) if packed else content)
    return train[:, None], test[:, None]


@pytest.mark.parametrize(("name", "folder"), [("mnist", "MNIST/raw"), ("fashionmnist", "FashionMNIST/raw")])
@pytest.mark.parametrize("packed", [True, False])
def test_mnist_kinds(tmp_path: Path, name: str, folder: str, packed: bool) -> None:
    train, test = mnist(tmp_path, folder, packed)
    dataset = load(name, tmp_path)
    assert same(dataset.train, train, [5, 0, 4, 1, 9, 2])
    assert same(dataset.test, test, [7, 2, 1])
    assert (dataset.shape, dataset.mean, dataset.std) == ((1, 28, 28), (0.1307,), (0.3081,))


@pytest.mark.parametrize(
    ("over", "sentence"),
    [
        ({"train_images_idx3": b"\x00\x00\x08"}, "train-images.*is not an idx file .* in 3 dimensions"),
        ({"train_images_idx3": b"<html>not found</html>"}, "is not an idx file .* begins with 3c 68 74 6d"),
        ({"train_images_idx3": idx(pixels(6, 28, 28), kind=13)}, "is not an idx file of unsigned bytes"),
        ({"train_labels_idx1": idx(pixels(6, 1))}, "train-labels.*in 1 dimensions"),
        ({"t10k_images_idx3": idx(pixels(3, 28, 28))[:-5]}, "cut off or has too much: .* 3 × 28 × 28 bytes, and 2,347"),
        ({"t10k_labels_idx1": idx(np.array([1, 2, 10], np.uint8))}, "t10k-images.*has the label 10"),
        ({"t10k_labels_idx1": idx(np.array([1, 2], np.uint8))}, "has 3 images, but labels of .* shape"),
        ({"t10k_images_idx3": idx(pixels(3, 27, 28))}, "announces 3 × 27 × 28 bytes; it should be N × 28 × 28"),
    ],
)
@pytest.mark.parametrize("packed", [True, False])
def test_broken_idx(tmp_path: Path, over: dict[str, bytes], sentence: str, packed: bool) -> None:
    mnist(tmp_path, packed=packed, **over)
    with pytest.raises(MaplError, match=sentence):
        load("mnist", tmp_path)


def test_a_gzip_that_is_cut_off(tmp_path: Path) -> None:
    mnist(tmp_path)
    cut("MNIST/raw/train-images-idx3-ubyte.gz", 500)(tmp_path)
    with pytest.raises(MaplError, match=r"ubyte.gz' is broken or cut off"):
        load("mnist", tmp_path)


def peak(action: Callable[[], object]) -> int:
    """The most memory in bytes that Python and numpy allocated meanwhile."""
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("images", [3, 10**9])
def test_no_more_of_a_gzip_bomb_is_unpacked_than_its_header_announces(tmp_path: Path, images: int) -> None:
    """64 MiB of zeros in 64 KiB, after a header that announces three images, or more than the format has."""
    mnist(tmp_path)
    header = bytes((0, 0, 8, 3)) + struct.pack(">3I", images, 28, 28)
    (tmp_path / "MNIST/raw/t10k-images-idx3-ubyte.gz").write_bytes(gzip.compress(header + bytes(2**26)))

    def refused() -> None:
        with pytest.raises(MaplError, match=r"t10k-images.*announces"):
            load("mnist", tmp_path)

    assert peak(refused) < 2**22


# SVHN


def svhn(root: Path, **over: Any) -> tuple[Bytes, Bytes]:
    (root / "svhn").mkdir()
    train, test = pixels(5, 3, 32, 32), pixels(3, 3, 32, 32, seed=1)
    for split, images, labels in (("train", train, [1, 10, 9, 2, 10]), ("test", test, [10, 5, 1])):
        content = {"X": images.transpose(2, 3, 1, 0), "y": np.array(labels, np.uint8)[:, None]}
        savemat(root / "svhn" / f"{split}_32x32.mat", {k: v for k, v in (content | over).items() if v is not None})
    return train, test


def test_svhn_calls_the_digit_zero_ten(tmp_path: Path) -> None:
    train, test = svhn(tmp_path)
    dataset = load("svhn", tmp_path)
    assert same(dataset.train, train, [1, 0, 9, 2, 0])
    assert same(dataset.test, test, [0, 5, 1])
    assert dataset.shape == (3, 32, 32)


@pytest.mark.parametrize(
    ("over", "sentence"),
    [
        ({"X": None}, "not a file of SVHN's cropped digits: it has no variable 'X'"),
        ({"y": None}, "it has no variable 'y'"),
        ({"X": pixels(32, 32, 3)}, r"not \(32, 32, 3, N\)"),
        ({"X": pixels(28, 28, 3, 5)}, r"shape \(3, 28, 28\), not \(3, 32, 32\)"),
        ({"y": np.array([1, 2, 3, 4, 11], np.uint8)}, "has the label 11"),
        ({"y": np.array([0.5] * 5)}, "labels of type float64"),
    ],
)
def test_broken_svhn(tmp_path: Path, over: dict[str, Any], sentence: str) -> None:
    svhn(tmp_path, **over)
    with pytest.raises(MaplError, match=rf"train_32x32.mat'.*{sentence}"):
        load("svhn", tmp_path)


def test_svhn_announces_its_size_before_it_is_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    svhn(tmp_path)
    monkeypatch.setattr(mapl.data.sources.svhn, "MOST", 2)
    with pytest.raises(MaplError, match=r"train_32x32.mat' announces more than 2 images"):
        load("svhn", tmp_path)


@pytest.mark.parametrize("content", [b"", b"MATLAB 5.0", bytes(1000), None])
def test_broken_mat(tmp_path: Path, content: bytes | None) -> None:
    svhn(tmp_path)
    path = tmp_path / "svhn" / "test_32x32.mat"
    path.write_bytes(path.read_bytes()[:3000] if content is None else content)
    with pytest.raises(MaplError, match=r"test_32x32.mat' is not a (MATLAB file|file of SVHN)"):
        load("svhn", tmp_path)


# CINIC-10 and folders of images


def save(path: Path, image: Bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image).save(path)


def cinic(root: Path, each: int = 2) -> dict[str, Bytes]:
    content = {}
    for number, split in enumerate(("train", "test")):
        images = pixels(10 * each, 32, 32, 3, seed=number)
        for i, image in enumerate(images):
            save(root / "cinic-10" / split / CIFAR_CLASSES[i // each] / f"{i:03}.png", image)
        content[split] = images.transpose(0, 3, 1, 2)
    return content


def test_cinic10(tmp_path: Path) -> None:
    content = cinic(tmp_path)
    grey = pixels(32, 32, seed=9)  # a few of the published images are
    save(tmp_path / "cinic-10/train/airplane/000.png", grey)
    content["train"][0] = grey
    steps: list[tuple[int, int]] = []
    source = Cinic10(progress=lambda done, total: steps.append((done, total)))
    dataset = source.load(DataSettings(name="cinic10", folder=tmp_path))
    labels = [k for k in range(10) for _ in range(2)]
    assert same(dataset.train, content["train"], labels)
    assert same(dataset.test, content["test"], labels)
    assert steps == [(i, 40) for i in range(1, 41)]


def test_cinic10_is_decoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cinic(tmp_path)
    first = load("cinic10", tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(Image, "open", lambda path: pytest.fail("decoded again"))
        again = load("cinic10", tmp_path)
    assert torch.equal(first.train.pixels, again.train.pixels)
    assert torch.equal(first.test.labels, again.test.labels)
    assert [path.name for path in (tmp_path / "cinic-10").iterdir() if path.is_file()] == [CACHE]

    save(tmp_path / "cinic-10/train/truck/new.png", pixels(32, 32, 3))
    assert len(load("cinic10", tmp_path).train) == len(first.train) + 1


@pytest.mark.parametrize("content", [b"", b"\xff" * 100, None])
def test_a_damaged_cache_is_made_again(tmp_path: Path, content: bytes | None) -> None:
    cinic(tmp_path)
    expected = load("cinic10", tmp_path)
    cache = tmp_path / "cinic-10" / CACHE
    whole = cache.read_bytes()
    cache.write_bytes(whole[:-100] if content is None else content)
    assert torch.equal(load("cinic10", tmp_path).train.pixels, expected.train.pixels)
    assert cache.read_bytes() == whole


def test_a_cache_that_cannot_be_written_costs_only_time(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cinic(tmp_path)
    (tmp_path / "cinic-10" / CACHE).mkdir()
    assert len(load("cinic10", tmp_path).train) == 20
    assert "could not be kept" in caplog.text


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (cut("cinic-10/test/cat/006.png", 60), "test/cat/006.png' is not an image that can be read"),
        (cut("cinic-10/test/cat/006.png", 0), "test/cat/006.png' is not an image that can be read"),
        (
            lambda root: save(root / "cinic-10/train/dog/x.png", pixels(32, 31, 3)),
            "train/dog/x.png' is an image of 31×32 pixels and 3 channels; it should have 32×32",
        ),
        (lambda root: save(root / "cinic-10/train/unicorn/x.png", pixels(32, 32, 3)), "train/unicorn' is not a class"),
        (
            lambda root: (root / "cinic-10/test").rename(root / "elsewhere"),
            "missing: cinic-10/test; .*mapl data get cinic10",
        ),
    ],
)
def test_broken_cinic10(tmp_path: Path, damage: Callable[[Path], object], sentence: str) -> None:
    cinic(tmp_path)
    damage(tmp_path)
    with pytest.raises(MaplError, match=sentence):
        load("cinic10", tmp_path)


def own_folder(root: Path, suffix: str = "png", channels: tuple[int, ...] = (3,)) -> dict[str, Bytes]:
    content = {}
    for number, split in enumerate(("train", "test")):
        images = pixels(4, 6, 5, *channels, seed=number)
        for i, image in enumerate(images):
            save(root / split / ("zebra", "ape")[i // 2] / f"{i}.{suffix}", image)
        content[split] = images if channels else images[..., None]
    return content


@pytest.mark.parametrize("channels", [(), (3,)])
def test_a_folder_of_images(tmp_path: Path, channels: tuple[int, ...]) -> None:
    content = own_folder(tmp_path, channels=channels)
    (tmp_path / "train" / "ape" / "notes.txt").write_text("not an image")
    (tmp_path / "train" / "ape" / ".hidden.png").write_text("not an image")
    dataset = load("folder", tmp_path)
    # Classes are numbered by name, so that what was written second comes first.
    expected = {split: images[[2, 3, 0, 1]].transpose(0, 3, 1, 2) for split, images in content.items()}
    assert same(dataset.train, expected["train"], [0, 0, 1, 1])
    assert same(dataset.test, expected["test"], [0, 0, 1, 1])
    assert dataset.class_names == ("ape", "zebra")
    scaled = expected["train"] / 255
    assert dataset.mean == pytest.approx(scaled.mean((0, 2, 3)))
    assert dataset.std == pytest.approx(scaled.std((0, 2, 3)))


def test_a_folder_of_jpegs_and_its_progress(tmp_path: Path) -> None:
    own_folder(tmp_path, "JPG")
    steps: list[int] = []
    dataset = Folder(progress=lambda done, total: steps.append(total)).load(DataSettings(folder=tmp_path))
    assert (len(dataset.train), dataset.shape, steps) == (4, (3, 6, 5), [8] * 8)


def test_a_class_without_test_images(tmp_path: Path) -> None:
    own_folder(tmp_path)
    for path in (tmp_path / "test" / "ape").iterdir():
        path.unlink()
    (tmp_path / "test" / "ape").rmdir()
    assert load("folder", tmp_path).test.labels.tolist() == [1, 1]


def empty(root: Path) -> None:
    for path in root.glob("train/*/*"):
        path.unlink()


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (
            lambda root: Image.new("F", (5, 6)).save(root / "test/ape/odd.tif"),
            "odd.tif' cannot be used: its pixels are floats",
        ),
        (lambda root: (root / "test/ape/2.png").write_text("no image"), "ape/2.png' is not an image that can be read"),
        (lambda root: (root / "test/cow").mkdir(), "test/cow'.*classes: ape, zebra"),
        (lambda root: (root / "train").rename(root / "t"), "has the folder 'test', but none named 'train'"),
        (empty, "train' has no images"),
    ],
)
def test_broken_folders(tmp_path: Path, damage: Callable[[Path], object], sentence: str) -> None:
    own_folder(tmp_path)
    damage(tmp_path)
    with pytest.raises(MaplError, match=sentence):
        load("folder", tmp_path)


def test_a_folder_without_classes(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    with pytest.raises(MaplError, match="train' has no folders"):
        load("folder", tmp_path)


# npz


def arrays(**over: Any) -> dict[str, Any]:
    made = {
        "train_images": pixels(4, 6, 5),
        "train_labels": np.array([0, 2, 1, 2]),
        "test_images": pixels(2, 6, 5, seed=1),
        "test_labels": np.array([3, 0], np.uint8),
    }
    return {name: array for name, array in (made | over).items() if array is not None}


@pytest.mark.parametrize(
    ("shape", "order"),
    [((6, 5), None), ((6, 5, 3), (0, 3, 1, 2)), ((6, 5, 1), (0, 3, 1, 2)), ((3, 6, 5), (0, 1, 2, 3))],
)
def test_npz(tmp_path: Path, shape: tuple[int, ...], order: tuple[int, ...] | None) -> None:
    given = arrays(
        train_images=pixels(4, *shape), test_images=pixels(2, *shape), train_labels=np.array([[0], [2], [1], [2]])
    )
    np.savez(tmp_path / "own.npz", **given)
    dataset = load("npz", tmp_path / "own.npz")
    expected = given["train_images"].transpose(order) if order else given["train_images"][:, None]
    assert same(dataset.train, np.ascontiguousarray(expected), [0, 2, 1, 2])
    assert dataset.test.labels.tolist() == [3, 0]
    assert dataset.classes == 4
    assert dataset.mean == pytest.approx((expected / 255).mean((0, 2, 3)))


@pytest.mark.parametrize(
    ("over", "sentence"),
    [
        ({"test_labels": None}, "has no array test_labels"),
        ({"train_images": pixels(4, 6, 5, 4)}, r"images of shape \(4, 6, 5, 4\)"),
        ({"train_images": pixels(4, 30)}, "images of shape"),
        ({"train_images": np.full((4, 6, 5), 2.5)}, "pixels from 2.5 to 2.5; they should be from 0 to 1, or whole"),
        ({"train_images": np.full((4, 6, 5), "a")}, "images of type <U1; they should be numbers"),
        ({"train_labels": np.array([0, 1, 2.5, 3])}, r"the label 2.5 \(sample 2, counted from 0\); labels are classes"),
        ({"train_labels": np.array([0, 1, np.nan, 3])}, "no label for sample 2"),
        ({"train_labels": np.array(["a", "b", "", "d"])}, "no label for sample 2"),
        ({"train_labels": np.zeros(4), "test_labels": np.zeros(2)}, r"one class only \('0'\)"),
        ({"train_images": None, "train_labels": None, "test_images": None, "test_labels": None}, "no arrays named"),
        ({"train_labels": np.array([0, -1, 2, 3])}, "has the label -1"),
        ({"train_labels": np.array([0, 1, 2])}, "has 4 images, but labels"),
        ({"test_images": pixels(0, 6, 5), "test_labels": np.array([], np.int64)}, "has no images"),
        ({"test_images": pixels(2, 5, 5)}, r"samples of shape \(1, 6, 5\), but .* \(1, 5, 5\)"),
    ],
)
def test_broken_npz(tmp_path: Path, over: dict[str, Any], sentence: str) -> None:
    np.savez(tmp_path / "own.npz", **arrays(**over))
    with pytest.raises(MaplError, match=sentence):
        load("npz", tmp_path / "own.npz")


def test_a_file_that_is_no_npz(tmp_path: Path) -> None:
    path = tmp_path / "own.npz"
    with pytest.raises(MaplError, match=r"there is no file .*own.npz"):
        load("npz", path)
    np.savez(path, **arrays())
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(MaplError, match=r"own.npz' is not an .npz file"):
        load("npz", path)
    single = io.BytesIO()
    np.save(single, pixels(3))
    path.write_bytes(single.getvalue())
    with pytest.raises(MaplError, match="is a single array"):
        load("npz", path)


def test_an_npz_cannot_bring_a_pickle(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    poison = np.array([Hostile(marker)], dtype=object)
    np.savez(tmp_path / "own.npz", **arrays(train_images=poison))
    with pytest.raises(MaplError, match=r"is not an .npz file of plain arrays"):
        load("npz", tmp_path / "own.npz")
    assert not marker.exists()


# What all have in common


def test_mean_and_std_of_images_without_any_contrast() -> None:
    assert mean_and_std(torch.full((2, 1, 3, 3), 51, dtype=torch.uint8)) == ((0.2,), (1 / 255,))


def test_own_data_need_a_place() -> None:
    for name in ("folder", "npz", "table"):
        with pytest.raises(MaplError, match=rf"data set '{name}' is your own") as error:
            load(name, None)
        assert "--set data.folder=PATH" in error.value.shell


def test_where_files_are_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MAPL_DATA", raising=False)
    assert DataSettings().root() == Path("data")
    monkeypatch.setenv("MAPL_DATA", str(tmp_path))
    assert DataSettings().root() == tmp_path
    assert DataSettings(folder=Path("~/here")).root() == Path.home() / "here"


@pytest.mark.parametrize("name", ["cifar10", "cinic10", "svhn", "mnist", "fashionmnist"])
def test_missing_files_are_named(tmp_path: Path, name: str) -> None:
    published = known(mapl.data.sources)[name].published
    with pytest.raises(MaplError) as error:
        load(name, tmp_path)
    for path in published.layouts[0]:
        assert path in str(error.value)
    assert f"mapl data get {name} --folder {tmp_path}" in str(error.value)


def test_of_half_a_data_set_only_the_missing_half_is_named(tmp_path: Path) -> None:
    mnist(tmp_path, packed=False)
    (tmp_path / "MNIST/raw/t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(MaplError, match=r"missing: MNIST/raw/t10k-labels-idx1-ubyte;"):
        load("mnist", tmp_path)


def test_files_with_another_checksum_are_used_and_said_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    svhn(tmp_path)
    with caplog.at_level(logging.WARNING, "mapl.data"):
        load("svhn", tmp_path)
    (message,) = caplog.messages
    assert "2 files (svhn/train_32x32.mat, …) are not as published" in message
    published = known(mapl.data.sources)["svhn"].published
    assert set(published.checksums(tmp_path).values()) == {"different"}


def warnings_of_new_process(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, folder: Path) -> int:
    monkeypatch.setattr(mapl.data.published, "_noticed", set())
    caplog.clear()
    load("svhn", folder)
    return len(caplog.messages)


def test_files_with_another_checksum_are_mentioned_once_until_they_change(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    svhn(tmp_path)
    assert warnings_of_new_process(monkeypatch, caplog, tmp_path) == 1
    assert warnings_of_new_process(monkeypatch, caplog, tmp_path) == 0
    changed = tmp_path / "svhn/test_32x32.mat"
    changed.write_bytes((tmp_path / "svhn/train_32x32.mat").read_bytes())
    assert warnings_of_new_process(monkeypatch, caplog, tmp_path) == 1
    assert warnings_of_new_process(monkeypatch, caplog, tmp_path) == 0


def test_without_a_place_to_remember_it_files_are_mentioned_once_per_process(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    svhn(tmp_path)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert warnings_of_new_process(monkeypatch, caplog, tmp_path) == 1
    load("svhn", tmp_path)
    assert len(caplog.messages) == 1
    assert warnings_of_new_process(monkeypatch, caplog, tmp_path) == 1


def test_files_without_a_published_checksum_pass_in_silence(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    mnist(tmp_path, packed=False)
    load("mnist", tmp_path)
    assert not caplog.messages


@pytest.mark.parametrize("name", ["cifar10", "cinic10", "svhn", "mnist", "fashionmnist"])
def test_the_papers_data_sets_suggest_the_papers_protocol(name: str) -> None:
    before = copy.deepcopy(known(mapl.data.sources)[name].suggests)
    recipe = Recipe.of(data=name)
    assert (recipe.clients, recipe.rounds, recipe.partition.shots, recipe.model.hidden) == (20, 400, 300, 4096)
    assert recipe.model.backbones == ("resnet18", "shufflenet", "googlenet", "alexnet")
    grey = 0.0 if "mnist" in name else RELEASED.greyscale
    assert recipe.augment.contrastive == RELEASED.model_copy(update={"greyscale": grey})
    assert known(mapl.data.sources)[name].suggests == before


def test_names_of_classes_must_fit() -> None:
    images = Images(torch.zeros(1, 1, 2, 2, dtype=torch.uint8), torch.zeros(1, dtype=torch.int64))
    with pytest.raises(MaplError, match="has 2 classes, but 1 names"):
        Dataset("own", images, images, classes=2, class_names=("a",))
