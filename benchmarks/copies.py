r"""What a process of a sweep holds, with and without room for copies of its clients' examples.

The first cell of a sweep, each time in a process of its own: with copies up to the process's share
of memory, and with none. Printed are the process's private memory at the end (the features of
frozen layers are mapped from a file, which all processes share), the seconds of the median round
after the first, and whether both give the same accuracies.

Examples
--------
python benchmarks/copies.py
python benchmarks/copies.py --set data-dir=data --set weights=vgg16.pth
"""

import argparse
import logging
import statistics
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest.mock import patch

from measure import machine, own_megabytes

from pncs_flower.simulations.cli.console import parse_setting
from pncs_flower.simulations.sweep.cell import Cell
from pncs_flower.simulations.sweep.file import read_sweep
from pncs_flower.simulations.sweep.plan import Report

EXPERIMENTS = Path(__file__).resolve().parent.parent / "simulations" / "experiments"


@dataclass(frozen=True)
class Measured:
    """Private MB at the end, seconds of the median round, and all accuracies."""

    megabytes: float
    seconds: float
    accuracies: tuple[float, ...]


def measure(cell: Cell, copies: bool) -> Measured:
    """Run a cell in this process, which has run none before."""
    from pncs_flower.simulations import client_app
    from pncs_flower.simulations.run.in_process import InProcessGrid
    from pncs_flower.simulations.run.training import train

    rows: list[Any] = []
    grid = InProcessGrid(client_app.app, cell.clients, cell.settings)
    config = replace(cell.config, checkpoint=False)
    share = client_app._share_of_memory() if copies else 0
    logging.getLogger("flwr").setLevel(logging.ERROR)
    with (
        tempfile.TemporaryDirectory(prefix="pncs-") as folder,
        patch.object(client_app, "_share_of_memory", lambda: share),
    ):
        train(grid, config, Path(folder), rows.append)
    times = [float(row["elapsed"]) for row in rows]
    rounds = [after - before for before, after in pairwise(times)]
    accuracies = tuple(float(row["accuracy"]) for row in rows)
    return Measured(own_megabytes(), statistics.median(rounds), accuracies)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sweep", type=Path, default=EXPERIMENTS / "table2.toml")
    parser.add_argument("--quick", action="store_true", help="the sweep's quick version")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="settings")
    options = parser.parse_args()
    sweep = read_sweep(options.sweep)
    sweep = sweep.quickened() if options.quick else sweep
    settings = {**sweep.settings, "device": "cpu", **dict(map(parse_setting, options.settings))}
    cell = replace(sweep, report=Report(), tune=None, settings=settings).cells()[0]
    print(machine(), flush=True)
    print(f"{cell.panel}, {cell.line}, seed {cell.seed}, {cell.config.num_rounds} rounds")
    found = []
    for copies in (True, False):
        # Spawned, so that it holds nothing of this process; of one task each.
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            found.append(pool.submit(measure, cell, copies).result())
        print(
            f"{'copies' if copies else 'no copies':<10} {found[-1].megabytes:>6.0f} MB of its own, "
            f"{found[-1].seconds:.2f} s a round",
            flush=True,
        )
    same = found[0].accuracies == found[1].accuracies
    print("the same accuracies" if same else "OTHER ACCURACIES")


if __name__ == "__main__":
    main()
