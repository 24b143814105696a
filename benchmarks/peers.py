r"""Seconds of a round in a plain PyTorch loop, in other simulators, and in this library.

Each peer does the same work: all clients train from the same model by SGD, each on examples of its
own that are in memory, and the new model is their mean by the number of examples. `linear` is a
4100x10 layer and one step on 32 examples, `mlp` 784-64-10 and one epoch over 600 or 300, `cnn` two
small convolutions and one epoch over 160 or 80; the number is that of the clients. All compute on
the CPU with one thread in each process, and `workers` says how many processes or threads play
clients. Each peer is a process of its own. `ratio` is to the plain loop of the same repeat, the
median and the least and most over the repeats. `off by` is how far the final model is from the
plain loop's, as a share of the way that training has moved it: more than 0.001 is an error.

`blazefl` trains one client after the other, `blazefl-threads` and `blazefl-processes` (shared
memory) several; its threads are at their best with a Python without the GIL. `pfl` is pfl-research
(`pfl-processes`: under torchrun). These are installed, at the versions below, into environments of
their own in `build/peers`, which use this one's PyTorch; where that fails, they are skipped.
`flower-ray` is Flower's own FedAvg and a client app like those of its examples, on its simulation;
`flower-in-process` the same strategy, and a client of the library, on the library's engine. `ours`,
`ours-workers` and `ours-ray` are a strategy of the library that chooses all clients, in process and
on Ray.

Examples
--------
python benchmarks/peers.py
python benchmarks/peers.py --works linear-100 --peers plain blazefl ours ours-workers --repeats 1
python benchmarks/peers.py --quick
"""

import argparse
import os
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measure import machine

from pncs_flower.simulations.machine.processes import adopt_orphans, guarded, stop_descendants
from pncs_flower.simulations.machine.signals import exit_on_signals, ignoring_signals
from pncs_flower.simulations.machine.surroundings import OF_RAY, short_folder, without_proxy_here

HERE = Path(__file__).resolve().parent
APP = HERE / "peers_app"
sys.path.insert(0, str(APP))

from work import VARIABLE, Task, Work, first_model  # noqa: E402

WORKS = {
    "linear-10": Work("linear", clients=10, examples=32),
    "linear-100": Work("linear", clients=100, examples=32),
    "mlp-100": Work("mlp", clients=100, examples=600),
    "cnn-20": Work("cnn", clients=20, examples=160),
}
WARM = 2  # rounds before those that are timed
# Off the plain loop's model: rounding is below 1e-5; other batches, or no weights, above 0.1.
FURTHEST = 1e-3
LIMIT = 1200.0  # seconds for one peer and one work
INSTALLING = 600.0  # seconds

# What pip is told. BlazeFL 2.0.3 asks for Python 3.12, but uses nothing that 3.11 lacks.
PACKAGES = {
    "blazefl": ("--ignore-requires-python", "blazefl==2.0.3"),
    "pfl": ("pfl==0.6.0",),
}


@dataclass(frozen=True)
class Peer:
    """How a peer is started: a module of `peers_app`, and a package that it needs."""

    module: str
    how: str = ""
    several: bool = False  # whether several clients are played at once
    package: str = ""


PEERS = {
    "plain": Peer("with_plain"),
    "blazefl": Peer("with_blazefl", "serial", package="blazefl"),
    "blazefl-threads": Peer("with_blazefl", "threads", several=True, package="blazefl"),
    "blazefl-processes": Peer("with_blazefl", "processes", several=True, package="blazefl"),
    "pfl": Peer("with_pfl", package="pfl"),
    "pfl-processes": Peer("with_pfl", several=True, package="pfl"),
    "flower-ray": Peer("with_flower", "flower-ray", several=True),
    "flower-in-process": Peer("with_flower", "flower-in-process"),
    "ours": Peer("with_flower", "in-process"),
    "ours-workers": Peer("with_flower", "in-process", several=True),
    "ours-ray": Peer("with_flower", "ray", several=True),
}


@dataclass(frozen=True)
class Measured:
    """What came of one peer and one work: median seconds of a round, and the final weights."""

    seconds: float
    weights: torch.Tensor
    versions: Mapping[str, str]


class SkippedError(RuntimeError):
    """A peer cannot be had here; says why."""


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--works", nargs="+", choices=WORKS, default=list(WORKS))
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=list(PEERS))
    parser.add_argument("--rounds", type=int, default=10, help=f"timed, after {WARM} that are not")
    parser.add_argument("--repeats", type=int, default=3, help="of all, each with a plain loop")
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--workers", type=int, default=max(2, cores), help="(default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="tiny: whether it runs, not how fast")
    parser.add_argument(
        "--environments",
        type=Path,
        default=HERE.parent / "build" / "peers",
        help="folder where other libraries are installed (default: build/peers)",
    )
    options = parser.parse_args(arguments)
    works = {name: WORKS[name] for name in options.works}
    if options.quick:
        options.rounds, options.repeats = 2, 1
        works = {
            name: replace(work, clients=4, examples=min(work.examples, 50))
            for name, work in works.items()
        }
    adopt_orphans()
    with exit_on_signals():
        sound = Comparison(options).run(works)
    if not sound:
        sys.exit("not all peers did the same work")


class Comparison:
    """Runs the peers, one after the other, and prints the table."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._peers = dict.fromkeys(["plain", *options.peers])
        self._pythons = {"": sys.executable}
        self._skipped: dict[str, str] = {}
        for package in dict.fromkeys(PEERS[name].package for name in self._peers):
            try:
                if package:
                    self._pythons[package] = environment(package, options.environments)
            except SkippedError as error:
                self._skipped |= {n: str(error) for n in self._peers if PEERS[n].package == package}

    def run(self, works: Mapping[str, Work]) -> bool:
        """Print a row for each work and peer; return whether all did the same work."""
        options, sound = self._options, True
        print(machine())
        print(
            f"{options.workers} workers; median of {options.rounds} rounds after {WARM}, and of "
            f"{options.repeats} repeats"
        )
        print(f"python benchmarks/peers.py {' '.join(sys.argv[1:])}\n")
        headings = f"{'workers':>7} {'median ms':>10} {'ratio':>7} {'from':>7} {'to':>7}"
        print(f"{'work':<11} {'peer':<18} {headings} {'off by':>8}", flush=True)
        versions: dict[str, str] = {}
        for name, work in works.items():
            first = flat(first_model(work).state_dict())
            found: dict[str, list[Measured]] = {peer: [] for peer in self._peers}
            failed = {peer: f"skipped: {why}" for peer, why in self._skipped.items()}
            for _ in range(options.repeats):
                for peer in self._peers:
                    if peer in failed:
                        continue
                    try:
                        found[peer].append(self._measure(PEERS[peer], work))
                    except RuntimeError as error:
                        failed[peer], sound = f"FAILED: {error}", False
                        if peer == "plain":
                            raise
            for peer in self._peers:
                row = failed.get(peer)
                if row is None:
                    row, same = self._row(peer, found[peer], found["plain"], first)
                    sound &= same
                    for measured in found[peer]:
                        versions.update(measured.versions)
                print(f"{name:<11} {peer:<18} {row}", flush=True)
        print(f"\n{', '.join(f'{name} {number}' for name, number in versions.items())}")
        return sound

    def _row(
        self, peer: str, found: list[Measured], plain: list[Measured], first: torch.Tensor
    ) -> tuple[str, bool]:
        ratios = [one.seconds / other.seconds for one, other in zip(found, plain, strict=True)]
        moved = float(torch.linalg.vector_norm(plain[0].weights - first))
        apart = [torch.linalg.vector_norm(one.weights - plain[0].weights) for one in found]
        off = float(np.max(apart)) / moved
        median = float(np.median([one.seconds for one in found])) * 1e3
        row = (
            f"{self._options.workers if PEERS[peer].several else 1:>7} {median:>10.1f} "
            f"{np.median(ratios):>7.2f} {min(ratios):>7.2f} {max(ratios):>7.2f} {off:>8.0e}"
        )
        same = off <= FURTHEST  # which NaN is not
        return row if same else f"{row} ANOTHER MODEL", same

    def _measure(self, peer: Peer, work: Work) -> Measured:
        """Have one peer do its work in a folder of its own, and leave nothing running there."""
        with short_folder() as home:
            return self._measure_in(home, peer, work)

    def _measure_in(self, home: Path, peer: Peer, work: Work) -> Measured:
        workers = self._options.workers if peer.several else 1
        output = home / "told.pt"
        task = Task(work, self._options.rounds + WARM, peer.how, workers, str(output))
        command = [self._pythons[peer.package], "-m", "run", peer.module]
        if peer.package == "pfl" and workers > 1:
            torchrun = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(workers)]
            command[2:3] = [*torchrun, "-m", "run"]
        log = home / "log"
        with guarded("FLWR_HOME", home) as watchdog:
            try:
                with log.open("wb") as told:
                    status = subprocess.run(
                        command,
                        cwd=home,
                        env=surroundings(home, task),
                        stdin=subprocess.DEVNULL,
                        stdout=told,
                        stderr=subprocess.STDOUT,
                        timeout=LIMIT,
                        check=False,
                    ).returncode
                if status or not output.exists():
                    said = "\n".join(log.read_text("utf-8", "replace").splitlines()[-15:])
                    raise RuntimeError(f"exit code {status}; the end of what it said:\n{said}")
                return read(output)
            except subprocess.TimeoutExpired:
                raise RuntimeError(f"it was not done after {LIMIT:g} s") from None
            finally:
                with ignoring_signals():
                    stop_descendants(spared=watchdog)


def environment(package: str, folder: Path) -> str:
    """Make an environment for a package, unless it is there; return its interpreter."""
    home = folder / package
    python = home / "bin" / "python"
    commands = [] if python.exists() else [[sys.executable, "-m", "venv", str(home)]]
    install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    commands.append([str(python), *install, *PACKAGES[package]])
    for command in commands:
        if command[0] == str(python):
            # What it does not have itself it takes from here: PyTorch is not installed twice.
            (site,) = home.glob("lib/python*/site-packages")
            (site / "outer.pth").write_text(f"{sysconfig.get_path('purelib')}\n", "utf-8")
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=INSTALLING, check=False
            )
        except subprocess.TimeoutExpired:
            raise SkippedError(f"not installed after {INSTALLING:g} s") from None
        if done.returncode:
            lines = (done.stdout + done.stderr).strip().splitlines() or ["it says nothing"]
            raise SkippedError(f"not installed: {lines[-1]}")
    return str(python)


def surroundings(home: Path, task: Task) -> dict[str, str]:
    """Return a peer's environment: one thread, no GPU, and all that is written in its folder."""
    return {
        **{k: v for k, v in without_proxy_here(os.environ).items() if k != "RAY_ADDRESS"},
        VARIABLE: task.to_text(),
        "PYTHONPATH": os.pathsep.join((str(APP), str(HERE.parent))),
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "TMPDIR": str(home),
        "FLWR_HOME": str(home),
        "RAY_TMPDIR": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        **OF_RAY,
        "TQDM_DISABLE": "1",  # bars that nobody sees
    }


def read(output: Path) -> Measured:
    told: dict[str, Any] = torch.load(output, weights_only=True)
    seconds = np.diff(told["ends"])[WARM - 1 :]
    return Measured(float(np.median(seconds)), flat(told["state"]), told["versions"])


def flat(state: Mapping[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat([state[name].reshape(-1).double() for name in sorted(state)])


if __name__ == "__main__":
    main()
