"""CIFAR-10 from folders written by hand, and from files that are not the published ones."""

import hashlib
import pickle
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from torchvision.datasets import CIFAR10

from pncs_flower.simulations.data.datasets import dataset_fingerprint, load_dataset

CLASSES = [f"class{letter}" for letter in "jihgfedcba"]  # not in alphabetical order


def write_images(folder: Path, suffix: str = ".png", side: int = 4) -> None:
    for part, count in (("train", 2), ("test", 1)):
        for number, name in enumerate(sorted(CLASSES)):
            (folder / part / name).mkdir(parents=True, exist_ok=True)
            for example in range(count):
                pixels = np.full((side, side, 3), (number, example, 9), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / part / name / f"{example}{suffix}")


def test_images_are_read_class_by_class_in_alphabetical_order(tmp_path: Path) -> None:
    write_images(tmp_path)
    data = load_dataset("cifar10", str(tmp_path))
    assert data.train_labels.tolist() == sorted([*range(10), *range(10)])
    assert data.train.shape == (20, 3, 4, 4)
    assert data.train[:, :, 0, 0].tolist() == [[i // 2, i % 2, 9] for i in range(20)]
    assert data.test_labels.tolist() == list(range(10))


@pytest.mark.parametrize(("suffix", "title"), [(".png", "CIFAR-10"), (".jpg", "CIFAR-10 (JPEG)")])
def test_what_was_compressed_with_loss_says_so(tmp_path: Path, suffix: str, title: str) -> None:
    write_images(tmp_path, suffix)
    assert load_dataset("cifar10", str(tmp_path)).title == title


def test_an_image_that_is_cut_off_is_named(tmp_path: Path) -> None:
    write_images(tmp_path)
    broken = tmp_path / "train" / "classd" / "1.png"
    broken.write_bytes(broken.read_bytes()[:40])
    with pytest.raises(ValueError, match=r"classd/1\.png cannot be read"):
        load_dataset("cifar10", str(tmp_path))


@pytest.mark.parametrize("part", ["train", "test"])
def test_an_image_of_another_size_is_named(part: str, tmp_path: Path) -> None:
    write_images(tmp_path)
    Image.new("RGB", (6, 5)).save(tmp_path / part / "classd" / "0.png")
    message = rf"{part}/classd/0\.png is 6x5, but .*train/classa/0\.png is 4x4: give all"
    with pytest.raises(ValueError, match=message):
        load_dataset("cifar10", str(tmp_path))


def test_a_missing_class_is_an_error(tmp_path: Path) -> None:
    write_images(tmp_path)
    (tmp_path / "test" / "classa" / "0.png").unlink()
    with pytest.raises(ValueError, match="test has images in 9 folders"):
        load_dataset("cifar10", str(tmp_path))


def test_an_empty_folder_names_two_ways(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"(?s)not in .*data get cifar10.*train/<class>"):
        load_dataset("cifar10", str(tmp_path))


def write_batches(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write pickles in torchvision's layout, and make theirs the published checksums."""
    base = folder / CIFAR10.base_folder
    base.mkdir()
    lists: dict[str, list[list[str]]] = {"train_list": [], "test_list": []}
    for number in range(3):
        batch = {"data": np.full((2, 3072), number, dtype=np.uint8), "labels": [number, 0]}
        (base / str(number)).write_bytes(pickle.dumps(batch))
        lists["test_list" if number == 2 else "train_list"].append(
            [str(number), hashlib.md5((base / str(number)).read_bytes()).hexdigest()]
        )
    (base / "meta").write_bytes(pickle.dumps({"label_names": CLASSES}))
    meta = hashlib.md5((base / "meta").read_bytes()).hexdigest()
    monkeypatch.setattr(CIFAR10, "meta", {**CIFAR10.meta, "filename": "meta", "md5": meta})
    monkeypatch.setattr(CIFAR10, "train_list", lists["train_list"])
    monkeypatch.setattr(CIFAR10, "test_list", lists["test_list"])
    monkeypatch.setitem(CIFAR10.meta, "key", "label_names")


def test_torchvisions_files_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_batches(tmp_path, monkeypatch)
    data = load_dataset("cifar10", str(tmp_path))
    assert data.title == "CIFAR-10"
    assert data.train_labels.tolist() == [0, 0, 1, 0]
    assert data.train[:, 0, 0, 0].tolist() == [0, 0, 1, 1]
    assert data.test.shape == (2, 3, 32, 32)


class _Trap:
    sprung = False

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return setattr, (_Trap, "sprung", True)


def test_a_file_with_another_checksum_is_never_unpickled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_batches(tmp_path, monkeypatch)
    (tmp_path / CIFAR10.base_folder / "1").write_bytes(pickle.dumps(_Trap()))
    with pytest.raises(ValueError, match="another checksum than the published one"):
        load_dataset("cifar10", str(tmp_path))
    assert not _Trap.sprung


def test_the_fingerprint_is_that_of_the_contents(tmp_path: Path) -> None:
    for name in ("here", "there", "changed"):
        write_images(tmp_path / name)
    image = tmp_path / "changed" / "test" / "classa" / "0.png"
    image.write_bytes(image.read_bytes() + b" ")
    here, there, changed = (
        dataset_fingerprint("cifar10", str(tmp_path / name))
        for name in ("here", "there", "changed")
    )
    assert here == there != changed
