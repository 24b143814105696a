"""How much memory this process may use: the machine's, or less where a container has a limit."""

import os
from collections.abc import Iterator
from pathlib import Path

__all__ = ["usable_memory"]


def usable_memory(root: Path = Path("/")) -> int | None:
    """Return the bytes of memory of this machine, or of the least limit on this process's group.

    Parameters
    ----------
    root : Path (default: "/")
        Where ``proc`` and ``sys`` are.

    Returns
    -------
    int or None
        None where the system does not tell.
    """
    found = list(_limits(root))
    if "SC_PHYS_PAGES" in getattr(os, "sysconf_names", {}):
        found.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return min((size for size in found if size > 0), default=None)


def _limits(root: Path) -> Iterator[int]:
    """Yield the limits of this process's control groups (version 2 and 1) and those above them."""
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):  # not on Linux
        return
    mounted = root / "sys/fs/cgroup"
    for line in lines:
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if not controllers:
            top, name = mounted, "memory.max"
        elif "memory" in controllers.split(","):
            top, name = mounted / "memory", "memory.limit_in_bytes"
        else:
            continue
        own = top / path.lstrip("/")
        # In a container the group's own path may not be there, but its limit is at the top.
        above = [folder for folder in own.parents if folder == top or top in folder.parents]
        for folder in (own, *above):
            try:
                yield int((folder / name).read_text(encoding="utf-8"))
            except (OSError, ValueError):  # not there, or "max"
                continue
