"""Fashion-MNIST from a folder: torchvision's, Debian's, or one with its four files."""

import gzip
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .examples import Data, Dataset

_DEBIAN = Path("/usr/share/datasets/fashion-mnist")
_RAW = Path("FashionMNIST/raw")
_NAMES = [
    f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")
]


def _files(folder: Path) -> dict[str, Path]:
    places = (folder, folder / _RAW)
    found = [
        next((p for f in places for p in (f / name, f / f"{name}.gz") if p.is_file()), None)
        for name in _NAMES
    ]
    absent = ", ".join(name for name, path in zip(_NAMES, found, strict=True) if path is None)
    if absent:
        raise FileNotFoundError(
            f"Fashion-MNIST is not in {folder} (no {absent}). Three ways to have it:\n"
            "  1. set data-dir to a folder with its four files, plain or .gz, or to the folder "
            "that holds torchvision's FashionMNIST/raw\n"
            "  2. on Debian or Ubuntu: apt-get install dataset-fashion-mnist, and leave data-dir "
            "empty\n"
            f"  3. pncs data get fashion-mnist, and set data-dir to {Path('data').resolve()}"
        )
    return {path.name: path for path in found if path}


def _load(folder: Path) -> Data:
    images, labels, test_images, test_labels = map(_read_idx, _files(folder).values())
    train = images[:, None], labels.astype(np.int64)
    test = test_images[:, None], test_labels.astype(np.int64)
    return Data(*train, *test, num_classes=10, max_value=255, title="Fashion-MNIST")


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
    whole = dimensions > 0 and len(raw) >= header
    shape = np.frombuffer(raw[4:header] if whole else b"", dtype=">u4").astype(np.int64)
    if not whole or len(raw) - header != shape.prod():
        raise ValueError(f"{path} is not an IDX file of bytes, or is cut off: fetch it again")
    return np.frombuffer(raw, dtype=np.uint8, offset=header).reshape(shape)


def _download(mirror: str) -> tuple[str, list[tuple[str, str]]]:
    from torchvision.datasets import FashionMNIST

    base = mirror or FashionMNIST.mirrors[0]
    return str(_RAW), [(f"{base}{name}", md5) for name, md5 in FashionMNIST.resources]


FASHION_MNIST = Dataset("fashion-mnist", (60000, 10000), _load, _DEBIAN, _files, _download)
