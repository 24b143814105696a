"""CIFAR-10 from a folder: torchvision's files, or an image file for each example."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

__all__ = ["cifar10_files", "read_cifar10"]

_SUFFIXES = (".jpg", ".jpeg", ".png")
_PARTS = ("train", "test")
_NUM_CLASSES = 10

Part = tuple[NDArray[np.uint8], NDArray[np.int64]]


def cifar10_files(folder: Path) -> list[Path]:
    """Return the files that the data set is read from, sorted.

    Raises
    ------
    FileNotFoundError
        If the folder holds neither layout.
    """
    batches = folder / "cifar-10-batches-py"
    if batches.is_dir():
        return sorted(path for path in batches.iterdir() if path.is_file())
    files = [
        path
        for part in _PARTS
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


def read_cifar10(folder: Path) -> tuple[str, Part, Part]:
    """Read the data set.

    Parameters
    ----------
    folder : Path
        The one given to torchvision as ``root``, or one with ``train/<class>/`` and
        ``test/<class>/``, where classes in alphabetical order have labels 0 to 9.

    Returns
    -------
    title : str
        ``"CIFAR-10"``; from JPEG files, which are an approximation, ``"CIFAR-10 (JPEG)"``.
    train, test : tuple of np.ndarray
        Images of shape (N, 3, height, width), dtype uint8, and labels of shape (N,).

    Raises
    ------
    FileNotFoundError
        If the folder holds neither layout.
    ValueError
        If a file is damaged, or if classes or sizes of images differ.
    """
    files = cifar10_files(folder)
    if files[0].parent.name == "cifar-10-batches-py":
        return "CIFAR-10", _read_batches(folder, train=True), _read_batches(folder, train=False)
    lossy = any(path.suffix.lower() != ".png" for path in files)
    train, test = (_read_images(folder, part, files) for part in _PARTS)
    if train[0].shape[1:] != test[0].shape[1:]:
        raise ValueError(
            f"{folder}: images for training are {_size(train[0])}, those for testing "
            f"{_size(test[0])}: give all of them one size"
        )
    return "CIFAR-10 (JPEG)" if lossy else "CIFAR-10", train, test


def _read_batches(folder: Path, train: bool) -> Part:
    from torchvision.datasets import CIFAR10

    # These files are pickles, which could run code: torchvision unpickles a file only if its
    # checksum is that of the published one.
    try:
        data = CIFAR10(str(folder), train=train)
    except RuntimeError:
        raise ValueError(
            f"{folder / CIFAR10.base_folder}: a file is missing or has another checksum than the "
            "published one: download the data set again"
        ) from None
    images = np.ascontiguousarray(data.data.transpose(0, 3, 1, 2))
    return images, np.array(data.targets, dtype=np.int64)


def _read_images(folder: Path, part: str, files: list[Path]) -> Part:
    from PIL import Image, UnidentifiedImageError

    own = [path for path in files if path.parent.parent == folder / part]
    classes = sorted({path.parent.name for path in own})
    if len(classes) != _NUM_CLASSES:
        raise ValueError(
            f"{folder / part} has images in {len(classes)} folders ({', '.join(classes)}), but "
            f"CIFAR-10 has {_NUM_CLASSES} classes: have one folder for each"
        )
    images: list[NDArray[np.uint8]] = []
    for path in own:
        try:
            with Image.open(path) as image:
                pixels = np.asarray(image.convert("RGB"))
        except (UnidentifiedImageError, OSError, SyntaxError) as error:
            raise ValueError(
                f"{path} cannot be read as an image ({error}): fetch it again"
            ) from None
        if images and pixels.shape != images[0].shape:
            raise ValueError(
                f"{path} is {pixels.shape[1]}x{pixels.shape[0]}, but {own[0]} is "
                f"{images[0].shape[1]}x{images[0].shape[0]}: give all images one size"
            )
        images.append(pixels)
    labels = np.array([classes.index(path.parent.name) for path in own], dtype=np.int64)
    return np.ascontiguousarray(np.stack(images).transpose(0, 3, 1, 2)), labels


def _size(images: NDArray[np.uint8]) -> str:
    return f"{images.shape[3]}x{images.shape[2]}"
