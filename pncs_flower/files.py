"""Files that are there whole or not at all, whatever happens while they are written."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import BinaryIO

from filelock import FileLock, Timeout

PARTIAL = ".partial"
"""What the name of a file ends in while it is written: one left behind was never finished."""


@contextmanager
def replacing(path: str | Path) -> Iterator[BinaryIO]:
    """Open a file that takes its name once it is whole and on disk; else what was there stays."""
    path = Path(path)
    # Two processes that write the same file do not write into each other's.
    partial = path.with_name(f"{path.name}.{os.getpid()}{PARTIAL}")
    with naming(path):
        try:
            with partial.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
        _sync_folder(path.parent)


@contextmanager
def naming(path: str | Path) -> Iterator[None]:
    """Have an error say which file it is about: a full disk does not."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


def write_whole(path: str | Path, content: str | bytes) -> None:
    """Write a file's content, text as UTF-8; see `replacing`."""
    with replacing(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Hold a folder against other writers, until the block or the process ends."""
    lock = FileLock(folder / "lock", thread_local=False)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise ValueError(
            f"another process still writes to {folder}: wait until it ends, or stop it (fuser -v "
            f"{quote(str(folder / 'lock'))} names it)"
        ) from None
    try:
        yield
    finally:
        lock.release()


def _sync_folder(folder: Path) -> None:
    """Make a rename last through a power cut, where the system can."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
