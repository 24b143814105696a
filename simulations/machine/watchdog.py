"""Stops what a command has started if the command is killed and cannot; a script of its own.

It reads from the command until the command is gone. What was started is known by its environment,
since daemons have detached themselves. Linux only: it needs /proc.
"""

import contextlib
import os
import shutil
import signal
import sys
import time
from pathlib import Path

__all__ = ["main", "marked"]

_GRACE = 3.0
_POLL = 0.1


def marked(mark: bytes) -> list[int]:
    """Return the processes with an entry such as ``NAME=value`` in their environment."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            with contextlib.suppress(OSError):  # it has ended, or is somebody else's
                if mark in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
    return found


def main() -> None:
    """Wait for the end of the command, and stop what has the mark."""
    name, folder = sys.argv[1:]
    sys.stdin.buffer.read()
    mark, start = f"{name}={folder}".encode(), time.monotonic()
    while pids := marked(mark):
        waited = time.monotonic() - start
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL if waited > _GRACE else signal.SIGTERM)
        if waited > 2 * _GRACE:
            break
        time.sleep(_POLL)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
