"""Run a sweep: tune what is to be tuned, then every cell that has no file yet."""

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from pncs_flower.files import held, write_whole
from pncs_flower.strategies.record import write_json_lines

from ..run.preflight import check_device, check_run
from ..task import load_inputs
from .cell_file import CELLS, cell_files, check_file, read_cell
from .pool import Failure, RunCells, pool
from .sweep import SWEEP, Cell, Sweep
from .tuning import Tuned, choose_rates, tuning_cells, with_rates

__all__ = ["FAILED", "run_sweep"]

TUNING = "tuning"
"""Folder with the files of the runs that chose the learning rates."""

FAILED = "failed"
"""Folder with the traceback of each cell that failed the last time."""

# How the reason begins where too large a learning rate left no finite update.
_DIVERGED = ("SelectionError: ", "EmptyRoundsError: ", "NoSummariesError: ")

OnCell = Callable[[Cell, int, int], None]
OnStart = Callable[[int, int], None]


def run_sweep(
    sweep: Sweep,
    folder: Path,
    workers: int,
    on_cell: OnCell,
    on_start: OnStart = lambda done, total: None,
) -> dict[str, str]:
    """Run what is missing, and return the reason of each cell that failed.

    ``folder`` takes ``sweep.json`` and a file for each cell. ``workers`` are Ray tasks with one
    cell at a time, 0 for one after the other in this process. What cannot be run, a damaged file,
    or another process in the folder is an error before anything runs. ``on_cell(cell, done,
    total)`` is called when a cell is over, well or not, ``on_start(done, total)`` before the first.
    """
    folder.mkdir(parents=True, exist_ok=True)
    elsewhere = workers > 0 and "RAY_ADDRESS" in os.environ
    with held(folder), pool(workers) as run_cells:

        def finish(files: Mapping[Path, Cell]) -> dict[str, str]:
            todo = {path: cell for path, cell in files.items() if not path.exists()}
            for path in files.keys() - todo.keys():
                check_file(path, files[path])  # a damaged one is told now and not after hours
            for parent in {path.parent for path in files}:
                parent.mkdir(parents=True, exist_ok=True)
            # It also computes the features of frozen layers, but once.
            _check_cells(todo.values(), elsewhere)
            if files:
                on_start(len(files) - len(todo), len(files))
            return _run_all(todo, folder / FAILED, run_cells, on_cell, len(files))

        tuning = cell_files(tuning_cells(sweep), folder / TUNING)
        if any(not path.exists() for path in tuning):
            # Those to come as well: tuning may take hours.
            _check_cells(sweep.cells(), elsewhere)
        failures = finish(tuning)
        broken = {name: why for name, why in failures.items() if not why.startswith(_DIVERGED)}
        if broken:
            return broken  # a rate must not be passed over because a disk was full
        tuned = choose_rates(
            [
                (cell, read_cell(path).rounds if path.exists() else [])
                for path, cell in tuning.items()
            ]
        )
        files = cell_files(with_rates(sweep.cells(), tuned), folder / CELLS)
        write_json_lines(folder / SWEEP, [_description(sweep, tuned, files)])
        return finish(files)


def _run_all(
    todo: Mapping[Path, Cell], failed: Path, run_cells: RunCells, on_cell: OnCell, total: int
) -> dict[str, str]:
    """Run cells, keep what came of each, and return those that failed."""
    failures: dict[str, str] = {}
    for done, (path, outcome) in enumerate(run_cells(todo), total - len(todo) + 1):
        details = failed / f"{path.stem}.txt"
        if isinstance(outcome, Failure):
            failures[path.stem] = outcome.reason
            with suppress(OSError):  # a full disk is a reason too
                failed.mkdir(exist_ok=True)
                write_whole(details, outcome.traceback)
        else:
            write_json_lines(path, outcome)
            details.unlink(missing_ok=True)
        on_cell(todo[path], done, total)
    return failures


def _description(sweep: Sweep, tuned: list[Tuned], files: Mapping[Path, Cell]) -> dict[str, Any]:
    # Said once and for all: the first line that has a result may be another one.
    resolved = replace(sweep, report=replace(sweep.report, reference=sweep.reference))
    return {
        **TypeAdapter(Sweep).dump_python(resolved, mode="json", by_alias=True),
        "tuned": [asdict(each) for each in tuned],
        "cells": [path.name for path in files],
        "panels": list(dict.fromkeys(cell.panel for cell in files.values())),
    }


def _check_cells(cells: Iterable[Cell], elsewhere: bool) -> None:
    """Refuse what can be known to go wrong in a cell, and what many of them share but once."""
    seen: set[object] = set()
    for cell in cells:
        config, clients = cell.config, cell.clients
        # Every seed has a partition of its own; nothing else depends on it, or on the rate.
        settings = replace(config, seed=0, lr=1.0), clients
        partition = config.of_parts(), clients
        try:
            if settings not in seen:
                if not elsewhere:  # whose devices are not known
                    check_device(config)
                check_run(config)
            if partition not in seen:
                load_inputs(config).check_division(config, clients)
        except ValueError as error:
            where = f"{cell.panel}, {cell.line}, seed {cell.seed}"
            raise ValueError(f"{where}: {error}") from error
        seen |= {settings, partition}
