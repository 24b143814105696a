"""Folders for what a process needs while it runs: those that killed ones have left are removed."""

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

_PREFIX = "pncs-"
_LOCK = "scratch.lock"  # held by the process that made the folder, and let go if that is killed


@contextmanager
def scratch_folder(kind: str = "", parent: str | None = None) -> Iterator[Path]:
    """Have a folder of one's own until the block ends, beside other temporary files by default."""
    parent = parent or tempfile.gettempdir()
    _remove_abandoned(Path(parent))
    while True:
        folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{kind}", dir=parent))
        lock = FileLock(folder / _LOCK, thread_local=False)
        with suppress(Timeout):  # whoever is removing others' has taken it for one of them
            lock.acquire(timeout=0)
            break
    try:
        yield folder
    finally:
        # Its contents may be written to by a process that is about to end.
        shutil.rmtree(folder, ignore_errors=True)
        lock.release()


def _remove_abandoned(parent: Path) -> None:
    """Remove the folders whose process is no more: nobody holds their locks."""
    if os.name != "posix":  # where no file that is open can be removed
        return
    for folder in parent.glob(f"{_PREFIX}*"):
        with suppress(OSError, Timeout):
            about = folder.lstat()
            # In a folder that all may write to, others may have laid one, or a link.
            own = stat.S_ISDIR(about.st_mode) and about.st_uid == os.getuid()
            if own and (folder / _LOCK).is_file():
                with FileLock(folder / _LOCK, timeout=0, thread_local=False):
                    shutil.rmtree(folder, ignore_errors=True)
