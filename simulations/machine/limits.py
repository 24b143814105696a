"""How much of the machine this process may use: a container may have less than all of it.

Without psutil, which knows no control groups: clients need nothing but Flower and PyTorch.
"""

import math
import os
import re
from collections.abc import Iterator
from pathlib import Path


def usable_memory(root: Path = Path("/")) -> int | None:
    """Return the bytes of memory, or of the least limit on this process's group, if it is known."""
    limits = _limits(root, "memory", ["memory.max"], ["memory.limit_in_bytes"])
    found = [size for each in limits for size in each if size > 0]
    if "SC_PHYS_PAGES" in getattr(os, "sysconf_names", {}):
        found.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return min(found, default=None)


def usable_cpus(root: Path = Path("/")) -> int:
    """Return the CPU cores that this process may run on, or the least limit on its group's time."""
    affinity = getattr(os, "sched_getaffinity", None)
    cpus = len(affinity(0)) if affinity else os.cpu_count() or 1
    limits = _limits(root, "cpu", ["cpu.max"], ["cpu.cfs_quota_us", "cpu.cfs_period_us"])
    # One and a half cores count as two.
    found = [math.ceil(each[0] / each[1]) for each in limits if len(each) == 2 and min(each) > 0]
    return min([*found, cpus])


def _limits(root: Path, controller: str, new: list[str], old: list[str]) -> Iterator[list[int]]:
    """Yield what files of version 2 (``new``) or 1 say of the control groups, from its own up."""
    try:
        text = (root / "proc/self/cgroup").read_text(encoding="utf-8")
    except (OSError, ValueError):  # not on Linux
        return
    mounted = root / "sys/fs/cgroup"
    for controllers, path in re.findall(r"^\d+:([^:\n]*):/*(.*)$", text, re.MULTILINE):
        if controllers and controller not in controllers.split(","):
            continue
        top, names = (mounted / controller, old) if controllers else (mounted, new)
        own = top / path
        # In a container the group's own path may not be there, but its limit is at the top.
        for folder in (own, *(each for each in own.parents if each.is_relative_to(top))):
            try:
                texts = [(folder / name).read_text(encoding="utf-8") for name in names]
                yield [int(word) for text in texts for word in text.split()]
            except (OSError, ValueError):  # not there, or "max"
                continue
