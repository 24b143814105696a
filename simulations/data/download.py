"""Data sets from where torchvision knows them to be published, by their published checksums."""

import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ..timeouts import DOWNLOAD_ANSWERS
from .examples import Dataset


def download(
    dataset: Dataset, data_dir: Path, on_file: Callable[[str, int], None], mirror: str = ""
) -> None:
    """Fetch the files that are not there yet, each whole or not at all, and unpack archives."""
    from torchvision.datasets.utils import check_integrity, extract_archive

    assert dataset.download is not None
    below, sources = dataset.download(f"{mirror.rstrip('/')}/" if mirror else "")
    folder = data_dir / below
    folder.mkdir(parents=True, exist_ok=True)
    for url, md5 in sources:
        path = folder / url.rpartition("/")[2]
        if not check_integrity(path, md5):
            _fetch(url, path, md5)
        if path.name.endswith(".tar.gz"):
            extract_archive(path, folder)
        on_file(path.name, path.stat().st_size)


def _fetch(url: str, path: Path, md5: str) -> None:
    from http.client import HTTPException  # takes a moment, and --help needs none
    from urllib.error import URLError

    from torchvision.datasets.utils import download_url

    try:
        # Elsewhere first: torchvision writes a file in its place, and leaves what is cut off.
        with _time_limit(), tempfile.TemporaryDirectory(dir=path.parent) as new:
            download_url(url, new, path.name, md5)
            (Path(new) / path.name).replace(path)
    except RuntimeError:
        raise ValueError(
            f"{url} has another MD5 than the published file, which has {md5}: try again, or give "
            "another address with --from"
        ) from None
    except (URLError, HTTPException, TimeoutError, ConnectionError) as error:
        reason = error.reason if isinstance(error, URLError) else type(error).__name__
        raise OSError(
            f"{url} cannot be fetched ({reason}): is there a network? Or give a mirror with "
            "--from, or put the files in place yourself (pncs data check says where)"
        ) from None


@contextmanager
def _time_limit() -> Iterator[None]:
    """Have connections that are opened meanwhile time out, which torchvision does not."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(DOWNLOAD_ANSWERS)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)
