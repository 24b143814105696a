"""Write every run of a sweep or a board as one line of CSV: the raw results behind the docs.

A line has the run's plot, rule, seed and learning rate, the bytes that all clients sent and
received, the simulated seconds where devices were simulated, and the score after each round.

Examples
--------
python benchmarks/sweep_raw.py runs/table2 docs/measured/table2.csv
python benchmarks/sweep_raw.py runs/leaderboard docs/measured/leaderboard-runs.csv
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from pncs_flower.simulations.board.results import read_board_results
from pncs_flower.simulations.folders import BOARD, SWEEP, check_folder, near_folder
from pncs_flower.simulations.report.page import write_csv
from pncs_flower.simulations.sweep.cell import Run
from pncs_flower.simulations.sweep.results import SweepResults, read_results


def sweeps_in(folder: Path) -> dict[str, SweepResults]:
    """Return the sweep in a folder, or each setting's of a board by its name."""
    check_folder(folder, SWEEP, BOARD, maker="pncs sweep")
    if (folder / BOARD).is_file():
        return {key: each.results for key, each in read_board_results(folder).settings.items()}
    if (folder / SWEEP).is_file():
        return {folder.name: read_results(folder)}
    raise FileNotFoundError(
        f"{folder} has no {SWEEP} and no {BOARD}: give the folder of a sweep or of a board"
        f"{near_folder(folder, SWEEP, BOARD)}"
    )


def row(sweep: str, run: Run, rounds: int) -> list[object]:
    """Return what stands in a run's line."""
    cell, simulated = run.cell, run.simulated
    scores = [f"{score:.5g}" for score in run.scores]
    return [
        *(sweep, cell["panel"], cell["line"], cell["seed"], f"{cell['settings']['lr']:g}"),
        *(int(run.bytes_up[-1]), int(run.bytes_down[-1])),
        "" if simulated is None else f"{simulated[-1]:.6g}",
        *(scores + [""] * (rounds - len(scores))),
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="of the sweep or the board")
    parser.add_argument("file", type=Path, help="to write")
    given = parser.parse_args(arguments)
    try:
        sweeps = sweeps_in(given.folder)
    except (OSError, ValueError) as error:
        raise SystemExit(str(error)) from None
    runs = [(name, run) for name, results in sweeps.items() for run in results.runs]
    rounds = max(len(run.scores) for _, run in runs)
    headings = "sweep,plot,rule,seed,lr,bytes sent,bytes received,simulated seconds,"
    headings += ",".join(f"round {n}" for n in range(1, rounds + 1))
    rows = [row(name, run, rounds) for name, run in runs]
    try:
        given.file.parent.mkdir(parents=True, exist_ok=True)
        write_csv(given.file, headings, rows)
    except OSError as error:
        raise SystemExit(f"{given.file} cannot be written: {error.strerror}") from None


if __name__ == "__main__":
    main()
