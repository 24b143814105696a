"""What a data set is, and the examples that it holds."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Kind = Literal["images", "text", "numbers"]


@dataclass(frozen=True)
class Data:
    """Examples and their labels, as small as they come; all that use them share them."""

    # Images have shape (N, channels, height, width), uint8, 0 to ``max_value``; text has shape
    # (N, length), uint8, a code for each character; numbers have shape (N, columns), float32.
    # Labels are classes, int64, or numbers, float32.

    train: NDArray[Any]
    train_labels: NDArray[Any]
    test: NDArray[Any]
    test_labels: NDArray[Any]
    num_classes: int  # 0 if labels are numbers
    title: str
    max_value: int | None = None  # of a white pixel; None for what is no image
    kind: Kind = "images"
    # Whose each training example is, 0 to the number of clients - 1, where the data set says so.
    clients: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        for name in ("train", "train_labels", "test", "test_labels"):
            object.__setattr__(self, name, unwritable(getattr(self, name)))


@dataclass(frozen=True)
class Dataset:
    """One of the data sets: how it is read, and where its files are and come from."""

    name: str
    sizes: tuple[int, int] | None
    """Training and test examples, as published; None if that is not known."""
    load: Callable[[Path], Data]
    usual_folder: Path = Path()
    files: Callable[[Path], Mapping[str, Path]] | None = None
    """What is read from a folder, by names that are the same wherever it is; None without files."""
    download: Callable[[str], tuple[str, list[tuple[str, str]]]] | None = None
    """From a mirror, or "": the folder below the data folder, and (URL, MD5) of each file."""
    on_hub: str = ""
    """Its name on the Hugging Face hub, if it is from there."""


def unwritable(values: NDArray[Any]) -> NDArray[Any]:
    """Return the same array, so that work in place on what is shared is an error."""
    shared = values.view()
    shared.flags.writeable = False
    return shared


def as_float(images: NDArray[np.uint8], max_value: int) -> NDArray[np.float32]:
    """Return images as float32 in [0, 1]."""
    return images.astype(np.float32) / np.float32(max_value)


def classes_of(labels: NDArray[Any]) -> NDArray[np.int64]:
    """Return labels that are classes, and of those that are numbers in which tenth each is."""
    if labels.dtype.kind != "f":
        return labels
    ranks = np.empty(len(labels), np.int64)
    ranks[np.argsort(labels, kind="stable")] = np.arange(len(labels))
    return ranks * 10 // max(1, len(labels))


def every_nth_of_each_class(labels: NDArray[Any], n: int) -> NDArray[np.bool_]:
    """Return, for each example, whether it is the n-th, 2n-th, ... of its class."""
    labels = classes_of(labels)
    chosen = np.zeros(len(labels), np.bool_)
    for label in np.unique(labels):
        chosen[np.flatnonzero(labels == label)[n - 1 :: n]] = True
    return chosen


def last_tenth_of_each(owners: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return, for each example, whether it is among the last tenth of its owner's, in their order.

    Of fewer than ten examples none is.
    """
    order = np.argsort(owners, kind="stable")
    _, counts = np.unique(owners, return_counts=True)
    places = np.concatenate([np.arange(n, 0, -1) for n in counts])  # from the end
    chosen = np.empty(len(owners), np.bool_)
    chosen[order] = places <= np.repeat(counts // 10, counts)
    return chosen
