"""What a data set is, and the images that it holds."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class ImageData:
    """Images and their labels, as small as they come; all that use them share them."""

    # Images have shape (N, channels, height, width), uint8, 0 to ``max_value``; labels int64.

    train_images: NDArray[np.uint8]
    train_labels: NDArray[np.int64]
    test_images: NDArray[np.uint8]
    test_labels: NDArray[np.int64]
    num_classes: int
    max_value: int
    title: str

    def __post_init__(self) -> None:
        for name in ("train_images", "train_labels", "test_images", "test_labels"):
            object.__setattr__(self, name, unwritable(getattr(self, name)))


@dataclass(frozen=True)
class Dataset:
    """One of the data sets: how it is read, and where its files are and come from."""

    name: str
    sizes: tuple[int, int]
    """Training and test examples, as published."""
    load: Callable[[Path], ImageData]
    usual_folder: Path = Path()
    files: Callable[[Path], Mapping[str, Path]] | None = None
    """What is read from a folder, by names that are the same wherever it is; None without files."""
    download: Callable[[str], tuple[str, list[tuple[str, str]]]] | None = None
    """From a mirror, or "": the folder below the data folder, and (URL, MD5) of each file."""


def unwritable(values: NDArray[Any]) -> NDArray[Any]:
    """Return the same array, so that work in place on what is shared is an error."""
    shared = values.view()
    shared.flags.writeable = False
    return shared


def as_float(images: NDArray[np.uint8], max_value: int) -> NDArray[np.float32]:
    """Return images as float32 in [0, 1]."""
    return images.astype(np.float32) / np.float32(max_value)


def every_nth_of_each_class(labels: NDArray[np.int64], n: int) -> NDArray[np.bool_]:
    """Return, for each example, whether it is the n-th, 2n-th, ... of its class."""
    chosen = np.zeros(len(labels), np.bool_)
    for label in np.unique(labels):
        chosen[np.flatnonzero(labels == label)[n - 1 :: n]] = True
    return chosen
