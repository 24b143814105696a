"""The data sets: images with labels, divided once and for all into training and test examples."""

import gzip
import zlib
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .cifar10 import cifar10_files, read_cifar10

__all__ = [
    "DATASETS",
    "DEBIAN_FASHION_MNIST",
    "ImageData",
    "as_float",
    "dataset_fingerprint",
    "every_nth_of_each_class",
    "load_dataset",
    "unwritable",
]

DATASETS = ("digits", "fashion-mnist", "cifar10")
"""The data sets by name."""

DEBIAN_FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")
"""Where Debian's package dataset-fashion-mnist puts its files."""

_DIGITS_TEST_STEP = 5


@dataclass(frozen=True)
class ImageData:
    """Images and their labels, as small as they come; all that use them share them.

    Attributes
    ----------
    train_images, test_images : np.ndarray
        Shape (N, channels, height, width), dtype uint8, 0 to ``max_value``; see `as_float`.
    train_labels, test_labels : np.ndarray
        Shape (N,), dtype int64, 0 to ``num_classes`` - 1.
    num_classes : int
        How many labels there are.
    max_value : int
        The value of a white pixel.
    title : str
        What figures made with it say.
    """

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

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, height and width."""
        _, channels, height, width = self.train_images.shape
        return channels, height, width


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
    rank = np.zeros(len(labels), dtype=np.int64)
    for label in np.unique(labels):
        of_label = labels == label
        rank[of_label] = np.arange(of_label.sum())
    chosen: NDArray[np.bool_] = rank % n == n - 1
    return chosen


@cache
def load_dataset(name: str, data_dir: str = "") -> ImageData:
    """Load a data set from this machine; nothing is downloaded.

    Parameters
    ----------
    name : {"digits", "fashion-mnist", "cifar10"}
        ``"digits"`` comes with scikit-learn: 1797 images of 8x8 pixels, of which every fifth of
        each class is a test example. ``"fashion-mnist"`` has 60000 training and 10000 test images
        of 28x28 pixels, ``"cifar10"`` 50000 and 10000 of 32x32 in colour.
    data_dir : str (default: "")
        Folder with Fashion-MNIST's four files, or the one given to torchvision as ``root``; where
        Debian's package has it if empty. For CIFAR-10 see `cifar10.read_cifar10`; the folder
        ``data`` if empty.

    Raises
    ------
    FileNotFoundError
        If the files are not there; says how to get them.
    ValueError
        If there is no such data set, or if a file is damaged.
    """
    if name == "digits":
        return _digits()
    if name == "fashion-mnist":
        return _fashion_mnist(data_dir)
    if name == "cifar10":
        title, train, test = read_cifar10(_cifar10_folder(data_dir))
        return ImageData(*train, *test, num_classes=10, max_value=255, title=title)
    raise _no_data_set(name)


@cache
def dataset_fingerprint(name: str, data_dir: str = "") -> str:
    """Hash the contents of a data set's files, without decoding them; see `load_dataset`.

    Returns
    -------
    str
        32 hexadecimal digits, the same for the same files wherever they are.

    Raises
    ------
    FileNotFoundError
        If the files are not there.
    ValueError
        If there is no such data set.
    """
    if name == "digits":
        data = load_dataset(name)
        parts = [data.train_images.tobytes(), data.train_labels.tobytes()]
        return blake2b(b"".join(parts), digest_size=16).hexdigest()
    if name == "fashion-mnist":
        files = {path.name: path for path in _fashion_mnist_files(data_dir)}
    elif name == "cifar10":
        folder = _cifar10_folder(data_dir)
        files = {str(path.relative_to(folder)): path for path in cifar10_files(folder)}
    else:
        raise _no_data_set(name)
    hashed = blake2b(digest_size=16)
    for label, path in files.items():
        content = path.read_bytes()
        hashed.update(f"{label} {len(content)}\n".encode())
        hashed.update(content)
    return hashed.hexdigest()


def _no_data_set(name: str) -> ValueError:
    return ValueError(f"no data set is called {name!r}: there are {', '.join(DATASETS)}")


def _cifar10_folder(data_dir: str) -> Path:
    return Path(data_dir or "data").expanduser()


def _digits() -> ImageData:
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = digits.images.astype(np.uint8)[:, None]
    labels = digits.target.astype(np.int64)
    # The examples come writer by writer: every fifth of a class has all writers in both parts.
    test = every_nth_of_each_class(labels, _DIGITS_TEST_STEP)
    return ImageData(
        images[~test],
        labels[~test],
        images[test],
        labels[test],
        num_classes=10,
        max_value=16,
        title="digits",
    )


def _fashion_mnist_files(data_dir: str) -> list[Path]:
    given = Path(data_dir).expanduser() if data_dir else DEBIAN_FASHION_MNIST
    folders = (given, given / "FashionMNIST" / "raw")
    names = [
        f"{part}-{kind}-ubyte"
        for part in ("train", "t10k")
        for kind in ("images-idx3", "labels-idx1")
    ]
    found = [
        next((p for f in folders for p in (f / name, f / f"{name}.gz") if p.is_file()), None)
        for name in names
    ]
    paths = [path for path in found if path is not None]
    if len(paths) < len(names):
        absent = ", ".join(name for name, path in zip(names, found, strict=True) if path is None)
        raise FileNotFoundError(
            f"Fashion-MNIST is not in {given} (no {absent}). Three ways to have it:\n"
            "  1. set data-dir to a folder with its four files, plain or .gz, or to the folder "
            "that holds torchvision's FashionMNIST/raw\n"
            "  2. on Debian or Ubuntu: apt-get install dataset-fashion-mnist, and leave data-dir "
            "empty\n"
            f"  3. pncs data get fashion-mnist, and set data-dir to {Path('data').resolve()}"
        )
    return paths


def _fashion_mnist(data_dir: str) -> ImageData:
    train_images, train_labels, test_images, test_labels = (
        _read_idx(path) for path in _fashion_mnist_files(data_dir)
    )
    return ImageData(
        train_images[:, None],
        train_labels.astype(np.int64),
        test_images[:, None],
        test_labels.astype(np.int64),
        num_classes=10,
        max_value=255,
        title="Fashion-MNIST",
    )


def _read_idx(path: Path) -> NDArray[np.uint8]:
    """Read a file of the MNIST family: a magic number, big-endian sizes, bytes."""
    raw = path.read_bytes()
    if path.suffix == ".gz":
        try:
            raw = gzip.decompress(raw)
        except (OSError, EOFError, zlib.error) as error:
            raise ValueError(f"{path} is damaged or cut off: fetch it again ({error})") from None
    dimensions = raw[3] if len(raw) > 3 and raw[:3] == b"\x00\x00\x08" else 0
    header = 4 + 4 * dimensions
    shape = np.frombuffer(raw[4:header], dtype=">u4").astype(np.int64)
    if not dimensions or len(raw) - header != shape.prod():
        raise ValueError(f"{path} is not an IDX file of bytes, or is cut off: fetch it again")
    return np.frombuffer(raw, dtype=np.uint8, offset=header).reshape(shape)
