"""A Ray cluster of two nodes on this machine, of which the second sees no file of the first.

It is in a mount namespace of its own, where the folders of the first node, and those of the
library, are empty: what a run on it needs must have travelled.
"""

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

from pncs_flower.simulations.machine.processes import adopt_orphans, descendants
from pncs_flower.simulations.machine.surroundings import free_ports, short_folder
from pncs_flower.simulations.machine.watchdog import stop

ROOT = Path(__file__).resolve().parent.parent
LIBRARY = [ROOT / name for name in ("pncs_flower", "strategies", "clients", "simulations")]
_RAY = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--num-cpus", "1"]
_RAY += ["--object-store-memory", "100000000"]
_SECOND = "127.0.0.2"


def can_hide() -> bool:
    """Tell whether this machine lets us hide folders from a process."""
    return sys.platform == "linux" and not _in_namespace("true", []).wait()


class Cluster:
    """The two nodes: a home for each, and the address."""

    def __init__(self, folder: Path, ray: Path) -> None:
        self.first, self.second = folder / "first", folder / "second"
        for home in (self.first, self.second, self.first / "tmp"):
            home.mkdir()
        self._ray = ray
        (port,) = free_ports(1)
        self._started: list[subprocess.Popen[bytes]] = []
        options = ["--head", "--port", str(port), "--temp-dir", str(self._ray)]
        options += ["--include-dashboard", "false"]
        self._start([*_RAY, *options], self.first)
        self.address = f"127.0.0.1:{port}"
        _wait_until(lambda: self._says("first", "Ray runtime started"))

    @property
    def environment(self) -> dict[str, str]:
        """What a command is given to use the cluster, at home on the first node."""
        tmp = str(self.first / "tmp")
        return {**os.environ, "RAY_ADDRESS": self.address, "HOME": str(self.first), "TMPDIR": tmp}

    def have_second(self) -> None:
        """Start the second node, or start it again, if it is not there."""
        if len(self._started) == 2:
            return
        (self.second / "ray.log").unlink(missing_ok=True)
        command = [*_RAY, "--address", self.address, "--node-ip-address", _SECOND]
        self._start(command, self.second, [self.first, self._ray, *LIBRARY])
        _wait_until(lambda: self._says("second", "Ray runtime started"))

    def kill_second(self) -> None:
        """Kill all of the second node's processes at once."""
        node = self._started.pop()
        for process in [*descendants(node.pid), psutil.Process(node.pid)]:
            process.kill()
        node.wait()

    def _start(self, command: Sequence[str], home: Path, hidden: Sequence[Path] = ()) -> None:
        kept = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        environment = {
            **kept,
            "HOME": str(home),
            "PYTHONPATH": str(home / "python"),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_raylet_start_wait_time_s": "120",  # a busy machine takes more than its 30 s
            "RAY_worker_niceness": "0",  # else whatever else the machine does comes first
        }
        with (home / "ray.log").open("wb") as log:
            options = {"cwd": home, "env": environment, "stdout": log, "stderr": log}
            if hidden:
                process = _in_namespace(shlex.join(command), hidden, **options)
            else:
                process = subprocess.Popen(command, **options)
        self._started.append(process)

    def _says(self, node: str, text: str) -> bool:
        assert all(each.poll() is None for each in self._started), self._log(node)
        return text in self._log(node)

    def _log(self, node: str) -> str:
        return (getattr(self, node) / "ray.log").read_text(errors="replace")


@contextmanager
def cluster_of_two(folder: Path) -> Iterator[Cluster]:
    """Have a cluster until the end of the block; only its first node is started."""
    adopt_orphans()
    before = set(descendants())
    with short_folder() as ray:
        try:
            yield Cluster(folder, ray)
        finally:
            assert not stop(lambda: [each for each in descendants() if each not in before], 5)


def _in_namespace(command: str, hidden: Sequence[Path], **options: object) -> subprocess.Popen:
    mounts = [f"mount -t tmpfs none {shlex.quote(str(path))}" for path in hidden]
    script = " && ".join([*mounts, f"exec {command}"])
    return subprocess.Popen(["unshare", "-rm", "sh", "-c", script], **options)


def _wait_until(holds, seconds: float = 200) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.2)
