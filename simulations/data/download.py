"""Data sets from where they are published, checked by their published checksums."""

import hashlib
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from urllib.error import URLError
from urllib.parse import urljoin
from urllib.request import urlopen

from pncs_flower.files import replacing

__all__ = ["SOURCES", "Source", "download"]

_BLOCK = 1 << 20
_TIMEOUT = 60


@dataclass(frozen=True)
class Source:
    """Where the files of a data set are.

    Attributes
    ----------
    address : str
        What the names are appended to.
    files : mapping of str to str
        MD5 of each file by its name, as torchvision has it: these sites publish no stronger one.
    folder : str
        Where the files go within the data folder.
    """

    address: str
    files: dict[str, str]
    folder: str


SOURCES = {
    "fashion-mnist": Source(
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        {
            "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
            "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
            "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
        },
        "FashionMNIST/raw",
    ),
    "cifar10": Source(
        "https://www.cs.toronto.edu/~kriz/",
        {"cifar-10-python.tar.gz": "c58f30108f718f92721af3b95e74349a"},
        ".",
    ),
}
"""The data sets that are not on every machine."""


def download(
    source: Source, data_dir: Path, on_file: Callable[[str, int], None], address: str = ""
) -> Path:
    """Fetch the files that are not there yet, and unpack archives.

    Parameters
    ----------
    source : Source
        What to fetch.
    data_dir : Path
        Where to put it, as torchvision would.
    on_file : callable
        Called as ``on_file(name, size in bytes)`` after each file.
    address : str (default: "")
        A mirror, in place of the source's own address.

    Returns
    -------
    Path
        The folder to give as data-dir.

    Raises
    ------
    OSError
        If a file cannot be fetched.
    ValueError
        If a file is not the published one; it is not kept.
    """
    folder = data_dir / source.folder
    base = address or source.address
    for name, checksum in source.files.items():
        path = folder / name
        if not path.exists() or _md5(path) != checksum:
            _fetch(urljoin(base if base.endswith("/") else f"{base}/", name), path, checksum)
        if name.endswith(".tar.gz"):
            with tarfile.open(path) as archive:
                archive.extractall(folder, filter="data")
        on_file(name, path.stat().st_size)
    return data_dir


def _fetch(url: str, path: Path, checksum: str) -> None:
    digest = hashlib.md5(usedforsecurity=False)
    try:
        with urlopen(url, timeout=_TIMEOUT) as answer:
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path) as file:
                while block := answer.read(_BLOCK):
                    file.write(block)
                    digest.update(block)
                if (found := digest.hexdigest()) != checksum:
                    raise ValueError(
                        f"{url} has MD5 {found}, but the published file has {checksum}: try again, "
                        "or give another address with --from"
                    )
    except (URLError, HTTPException, TimeoutError, ConnectionError) as error:
        reason = error.reason if isinstance(error, URLError) else type(error).__name__
        raise OSError(
            f"{url} cannot be fetched ({reason}): is there a network? Or give a mirror with "
            "--from, or put the files in place yourself (pncs data check says where)"
        ) from None


def _md5(path: Path) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()
