"""What the benchmarks share: the machine's name, times and memory, results in files."""

import argparse
import json
import os
import platform
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np


def machine() -> str:
    """Name the processor, the cores this process may use, and the versions that matter."""
    names = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        if line.startswith("model name")
    ]
    cores = len(os.sched_getaffinity(0))
    load = os.getloadavg()[0]
    return (
        f"{names[0] if names else platform.machine()}, {cores} cores (load {load:.1f}), "
        f"Python {platform.python_version()}, NumPy {np.__version__}"
    )


def seconds(work: Callable[[], object], repeats: int = 3) -> float:
    """Return the least of several wall times: what the machine can do when nothing disturbs it."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def extra_megabytes(work: Callable[[], object]) -> float:
    """Return the peak of this process's own memory above what it holds before, in MB.

    File pages of a memory mapping are not counted: the system takes them back when it needs to.
    """
    before = own_megabytes()
    peak, done = before, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.002):
            peak = max(peak, own_megabytes())

    watcher = threading.Thread(target=watch)
    watcher.start()
    work()
    done.set()
    watcher.join()
    return max(peak, own_megabytes()) - before


def own_megabytes() -> float:
    """Return this process's own memory in MB, without the pages of mapped files."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1024
    raise OSError("no RssAnon in /proc/self/status: memory is measured on Linux only")


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the objects of JSON lines, without a last line that is still being written."""
    return [json.loads(row) for row in path.read_text(encoding="utf-8").split("\n")[:-1]]


def picture(*suffixes: str) -> Callable[[str], Path]:
    """Return what reads an option that is the path of a picture: its name says of which kind."""

    def read(text: str) -> Path:
        path = Path(text)
        if path.suffix.lower() not in suffixes:
            kinds = " or ".join(suffixes)
            raise argparse.ArgumentTypeError(f"{text!r} must have a name that ends in {kinds}")
        if not path.parent.is_dir():
            raise argparse.ArgumentTypeError(f"{text!r}: there is no folder {path.parent}")
        return path

    return read
