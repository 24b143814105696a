r"""Seconds of a sweep's cells, beside the same runs through `flwr run` on Ray.

Five rules of a sweep: first with several seeds by the sweep's own runner, its start included, one
after the other in this process or many at once; then each rule, with the first seed, by `pncs run`,
which starts `flwr run`. Both give the same accuracies in every round, which is checked.

Examples
--------
python benchmarks/cells.py
python benchmarks/cells.py --workers 2 --set data-dir=data --set weights=vgg16.pth
"""

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from measure import machine

from pncs_flower.simulations.cli.console import parse_setting
from pncs_flower.simulations.run.folder import read_rounds
from pncs_flower.simulations.sweep.cell import CELLS, Cell
from pncs_flower.simulations.sweep.file import read_sweep
from pncs_flower.simulations.sweep.plan import Report
from pncs_flower.simulations.sweep.run import cell_files, run_sweep
from pncs_flower.simulations.sweep.sweep import Sweep

EXPERIMENTS = Path(__file__).resolve().parent.parent / "simulations" / "experiments"
RULES = ("pncs", "active-fl", "fedcor", "gradient-memory", "uniform")


def by_sweep(sweep: Sweep, folder: Path, workers: int) -> dict[str, list[float]]:
    """Run all cells and return the accuracies of each rule with the first seed."""
    failures = run_sweep(sweep, folder, workers, lambda cell, done, total: None)
    if failures:
        raise RuntimeError(str(failures))
    found = {}
    for path, cell in cell_files(sweep.cells(), folder / CELLS).items():
        _, *rounds, _ = (json.loads(line) for line in path.read_text("utf-8").splitlines())
        if cell.seed == 0:
            found[cell.line] = [row["accuracy"] for row in rounds]
    return found


def by_flower(cell: Cell, folder: Path) -> list[float]:
    """Run one cell through `flwr run` and return its accuracies."""
    command = cell.command.replace("--engine in-process ", "")
    arguments = [*shlex.split(command)[1:], "--output", str(folder)]
    code = "from pncs_flower.simulations.cli import main; main()"
    subprocess.run([sys.executable, "-c", code, *arguments], check=True, capture_output=True)
    return [float(row["accuracy"]) for row in read_rounds(folder)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sweep", type=Path, default=EXPERIMENTS / "table2.toml")
    parser.add_argument("--quick", action="store_true", help="the sweep's quick version")
    parser.add_argument("--workers", type=int, default=0, help="0: in this process, one by one")
    parser.add_argument("--seeds", type=int, default=6, help="of the sweep's own runner")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="settings")
    options = parser.parse_args()
    sweep = read_sweep(options.sweep)
    sweep = sweep.quickened() if options.quick else sweep
    settings = {**sweep.settings, "device": "cpu", **dict(map(parse_setting, options.settings))}
    sweep = replace(
        sweep,
        rules=RULES,
        rule={name: own for name, own in sweep.rule.items() if name in RULES},
        report=Report(),
        shards=sweep.shards[:1],
        seeds=options.seeds,
        tune=None,
        settings=settings,
    )
    print(machine(), flush=True)
    how = f"{options.workers} at once" if options.workers else "one by one"
    with tempfile.TemporaryDirectory(prefix="pncs-") as name:
        folder = Path(name)
        start = time.perf_counter()
        accuracies = by_sweep(sweep, folder / "sweep", options.workers)
        cells = sweep.cells()
        together = (time.perf_counter() - start) / len(cells)
        print(f"{len(cells)} cells by the sweep, {how}: {together:.2f} s a cell", flush=True)
        first = [cell for cell in cells if cell.seed == 0]
        start = time.perf_counter()
        for cell in first:
            begin = time.perf_counter()
            same = by_flower(cell, folder / cell.line) == accuracies[cell.line]
            print(
                f"{cell.line:<16} by flwr run: {time.perf_counter() - begin:.1f} s, "
                f"{'the same accuracies' if same else 'OTHER ACCURACIES'}",
                flush=True,
            )
        apart = (time.perf_counter() - start) / len(first)
    print(f"{len(first)} cells by flwr run: {apart:.1f} s a cell, {apart / together:.1f} times")


if __name__ == "__main__":
    main()
