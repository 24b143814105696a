"""Data sets: shapes, the fixed split, and a missing folder."""

import gzip
import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pncs_flower.simulations.data import digits
from pncs_flower.simulations.data.datasets import DATASETS, dataset_fingerprint, load_dataset
from pncs_flower.simulations.data.examples import as_float


def write_idx(path: Path, values: np.ndarray) -> None:
    header = bytes([0, 0, 8, values.ndim]) + np.array(values.shape, dtype=">u4").tobytes()
    raw = header + values.astype(np.uint8).tobytes()
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)


def write_fashion_mnist(folder: Path, suffix: str = "") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for part, count in (("train", 3), ("t10k", 2)):
        images = np.arange(count * 4).reshape(count, 2, 2)
        write_idx(folder / f"{part}-images-idx3-ubyte{suffix}", images)
        write_idx(folder / f"{part}-labels-idx1-ubyte{suffix}", np.arange(count))


def test_digits_are_divided_by_class() -> None:
    data = load_dataset("digits")
    assert data.train.shape == (1442, 1, 8, 8)
    assert data.train.dtype == np.uint8
    # Of n examples of a class, n // 5 are test examples.
    counts = np.bincount(data.train_labels) + np.bincount(data.test_labels)
    assert np.bincount(data.test_labels).tolist() == (counts // 5).tolist()


def test_digits_are_those_of_scikit_learn() -> None:
    from sklearn.datasets import load_digits

    data = load_dataset("digits")
    images = np.concatenate([data.train, data.test])
    labels = np.concatenate([data.train_labels, data.test_labels])
    ours = np.column_stack([images.reshape(-1, 64), labels])
    theirs = np.column_stack(load_digits(return_X_y=True))
    assert sorted(ours.tolist()) == sorted(theirs.tolist())


def test_digits_without_scikit_learn_name_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digits, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError) as raised:
        digits.DIGITS.load(Path())
    assert raised.value.name == "sklearn"


def test_no_digit_is_in_both_parts() -> None:
    data = load_dataset("digits")
    train = {image.tobytes() for image in data.train}
    assert not train & {image.tobytes() for image in data.test}


def test_images_become_fractions_of_white() -> None:
    images = np.array([[[[0, 4, 16]]]], dtype=np.uint8)
    floats = as_float(images, 16)
    assert floats.dtype == np.float32
    assert floats.tolist() == [[[[0.0, 0.25, 1.0]]]]


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("layout", [".", "FashionMNIST/raw"])
def test_fashion_mnist_is_read_from_a_folder(tmp_path: Path, layout: str, suffix: str) -> None:
    write_fashion_mnist(tmp_path / layout, suffix)
    data = load_dataset("fashion-mnist", str(tmp_path))
    assert data.train.tolist() == np.arange(12).reshape(3, 1, 2, 2).tolist()
    assert data.test_labels.tolist() == [0, 1]


def test_missing_fashion_mnist_names_three_ways(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as error:
        load_dataset("fashion-mnist", str(tmp_path))
    message = str(error.value)
    assert str(tmp_path) in message
    for way in ("data-dir", "apt-get install dataset-fashion-mnist", "pncs data get"):
        assert way in message


@pytest.mark.parametrize("end", [-1, 16, 6, 3, 0])
def test_a_file_that_is_cut_off_is_refused(end: int, tmp_path: Path) -> None:
    write_fashion_mnist(tmp_path)
    images = tmp_path / "train-images-idx3-ubyte"
    images.write_bytes(images.read_bytes()[:end])
    with pytest.raises(ValueError, match="train-images-idx3-ubyte is not an IDX file"):
        load_dataset("fashion-mnist", str(tmp_path))


@pytest.mark.parametrize(
    "content", [b"garbage", gzip.compress(b"0" * 1000, mtime=0)[:-9]], ids=["other", "cut"]
)
def test_a_compressed_file_that_is_damaged_is_named(content: bytes, tmp_path: Path) -> None:
    write_fashion_mnist(tmp_path)
    images = tmp_path / "train-images-idx3-ubyte"
    images.unlink()
    images.with_name(f"{images.name}.gz").write_bytes(content)
    with pytest.raises(ValueError, match=r"train-images-idx3-ubyte\.gz is damaged or cut off"):
        load_dataset("fashion-mnist", str(tmp_path))


@pytest.mark.skipif(
    not DATASETS["fashion-mnist"].usual_folder.is_dir(),
    reason="needs Debian's package dataset-fashion-mnist",
)
def test_debians_package_is_found() -> None:
    data = load_dataset("fashion-mnist")
    assert data.train.shape == (60000, 1, 28, 28)
    assert np.bincount(data.test_labels).tolist() == [1000] * 10


@pytest.mark.parametrize("of_a_name", [load_dataset, dataset_fingerprint])
def test_unknown_data_set_is_refused_and_not_taken_for_another(
    of_a_name: Callable[[str, str], object], tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="no data set is called 'cifar-10': there are digits, "):
        of_a_name("cifar-10", str(tmp_path))


def test_languages_are_generated_alike_and_differ_by_their_words() -> None:
    data = load_dataset("made-up-languages")
    assert (data.kind, data.num_classes, data.train.shape) == ("text", 10, (2000, 20))
    assert np.bincount(data.test_labels).tolist() == [50] * 10
    assert dataset_fingerprint("made-up-languages") == "0ef1903d5407b9320c0c7903c780439c"
    words = [
        {word for line in data.train[data.train_labels == n] for word in bytes(line).split()[:-1]}
        for n in range(10)
    ]
    for one, other in itertools.combinations(words, 2):
        assert len(one & other) < 0.2 * min(len(one), len(other))
