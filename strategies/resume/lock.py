"""One writer for a folder: what a killed start left running may still write to it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import IO

__all__ = ["hold_folder", "holding"]


@contextmanager
def holding(path: Path) -> Iterator[None]:
    """Hold a folder for the length of a block; see `hold_folder`."""
    lock = hold_folder(path)
    try:
        yield
    finally:
        if lock is not None:
            lock.close()


def hold_folder(path: Path) -> IO[str] | None:
    """Hold a folder until the returned file is closed, or the process ends.

    Returns
    -------
    file or None
        None where the system has no such locks.

    Raises
    ------
    ValueError
        If another start holds it.
    """
    try:
        import fcntl
    except ImportError:  # not on Windows
        return None
    file = (path / "lock").open("a", encoding="utf-8")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise ValueError(
            f"another process still writes to {path}: wait until it ends, or stop it (fuser -v "
            f"{quote(str(path / 'lock'))} names it)"
        ) from None
    return file
