"""CIFAR-10 from a folder: torchvision's files, or an image file for each example."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..how_far import tell
from .examples import Data, Dataset

_BATCHES = "cifar-10-batches-py"
_SUFFIXES = (".jpg", ".jpeg", ".png")
_NUM_CLASSES = 10

Part = tuple[NDArray[np.uint8], NDArray[np.int64]]


def _files(folder: Path) -> dict[str, Path]:
    batches = folder / _BATCHES
    if batches.is_dir():
        files = sorted(path for path in batches.iterdir() if path.is_file())
    else:
        files = _image_files(folder)
    return {str(path.relative_to(folder)): path for path in files}


def _image_files(folder: Path) -> list[Path]:
    files = [
        path
        for part in ("train", "test")
        for path in sorted((folder / part).glob("*/*"), key=lambda path: path.parts)
        if path.suffix.lower() in _SUFFIXES
    ]
    if not files:
        raise FileNotFoundError(
            f"CIFAR-10 is not in {folder}. Two ways to have it:\n"
            f"  1. pncs data get cifar10, and set data-dir to {Path('data').resolve()}\n"
            "  2. set data-dir to a folder of images, train/<class>/*.png and test/<class>/*.png "
            "(or .jpg)"
        )
    return files


def _load(folder: Path) -> Data:
    if (folder / _BATCHES).is_dir():
        title = "CIFAR-10"
        train, test = (_read_batches(folder, train) for train in (True, False))
    else:
        files = _image_files(folder)
        lossless = all(path.suffix.lower() == ".png" for path in files)
        title = "CIFAR-10" if lossless else "CIFAR-10 (JPEG)"
        size = _read_image(files[0]).shape
        train, test = (_read_images(folder / part, files, size) for part in ("train", "test"))
    return Data(*train, *test, num_classes=_NUM_CLASSES, max_value=255, title=title)


def _read_batches(folder: Path, train: bool) -> Part:
    from torchvision import datasets

    # These files are pickles, which could run code: torchvision unpickles a file only if its
    # checksum is that of the published one.
    try:
        data = datasets.CIFAR10(str(folder), train=train)
    except RuntimeError:
        raise ValueError(
            f"{folder / datasets.CIFAR10.base_folder}: a file is missing or has another checksum "
            "than the published one: download the data set again"
        ) from None
    images = np.ascontiguousarray(data.data.transpose(0, 3, 1, 2))
    return images, np.array(data.targets, dtype=np.int64)


def _read_images(folder: Path, files: list[Path], shape: tuple[int, ...]) -> Part:
    own = [path for path in files if path.parent.parent == folder]
    classes = sorted({path.parent.name for path in own})
    if len(classes) != _NUM_CLASSES:
        raise ValueError(
            f"{folder} has images in {len(classes)} folders ({', '.join(classes)}), but "
            f"CIFAR-10 has {_NUM_CLASSES} classes: have one folder for each"
        )
    images = np.empty((len(own), *shape), np.uint8)
    for place, path in enumerate(own):
        pixels = _read_image(path)
        if pixels.shape != shape:
            raise ValueError(
                f"{path} is {pixels.shape[1]}x{pixels.shape[0]}, but {files[0]} is "
                f"{shape[1]}x{shape[0]}: give all images one size"
            )
        images[place] = pixels
        tell(f"images, {folder.name}", place + 1, len(own))
    labels = np.array([classes.index(path.parent.name) for path in own], dtype=np.int64)
    return np.ascontiguousarray(images.transpose(0, 3, 1, 2)), labels


def _read_image(path: Path) -> NDArray[np.uint8]:
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path) as image:
            return np.asarray(image.convert("RGB"))
    except (UnidentifiedImageError, OSError, SyntaxError) as error:
        raise ValueError(f"{path} cannot be read as an image ({error}): fetch it again") from None


def _download(mirror: str) -> tuple[str, list[tuple[str, str]]]:
    from torchvision.datasets import CIFAR10 as PUBLISHED

    url = f"{mirror}{PUBLISHED.filename}" if mirror else PUBLISHED.url
    return ".", [(url, PUBLISHED.tgz_md5)]


CIFAR10 = Dataset("cifar10", (50000, 10000), _load, Path("data"), _files, _download)
