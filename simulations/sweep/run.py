"""Run a sweep: tune what is to be tuned, then every cell that has no file yet."""

import os
import tempfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from pncs_flower.files import held, write_whole
from pncs_flower.plain_text import one_line
from pncs_flower.strategies.record import write_json_lines

from ..run.folder import read_rounds, read_summary
from ..run.preflight import check_device, check_run
from ..task import inputs_fingerprint, load_inputs
from .cell import CELLS, Cell, check_file, read_cell, write_cell
from .pool import Failure, pool
from .results import SWEEP
from .statistics import Run
from .sweep import Sweep
from .tuning import Tuned, choose_rates, tuning_cells, with_rates

__all__ = ["FAILED", "cell_files", "run_sweep"]

TUNING = "tuning"
"""Folder with the files of the runs that chose the learning rates."""

FAILED = "failed"
"""Folder with the traceback of each cell that failed the last time."""

# How the reason begins where too large a learning rate left no finite update.
_DIVERGED = ("SelectionError: ", "EmptyRoundsError: ", "NoSummariesError: ")


def run_sweep(
    sweep: Sweep,
    folder: Path,
    workers: int,
    on_cell: Callable[[Cell, int, int], None],
    on_start: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, str]:
    """Run what is missing, and return the reason of each cell that failed.

    ``folder`` takes ``sweep.json`` and a file for each cell. ``workers`` are Ray tasks with one
    cell at a time, 0 for one after the other in this process. What cannot be run, a damaged file,
    or another process in the folder is an error before anything runs. ``on_cell(cell, done,
    total)`` is called when a cell is over, well or not, ``on_start(done, total)`` before the first.
    """
    folder.mkdir(parents=True, exist_ok=True)
    elsewhere = workers > 0 and "RAY_ADDRESS" in os.environ
    # What cells write meanwhile is removed at the end, also of those whose process was killed.
    with held(folder), _scratch() as scratch, pool(workers) as run_jobs:

        def run_missing(files: Mapping[Path, Cell]) -> dict[str, str]:
            todo = {path: cell for path, cell in files.items() if not path.exists()}
            for path in files.keys() - todo.keys():
                check_file(path, files[path])  # a damaged one is told now and not after hours
            for parent in {path.parent for path in files}:
                parent.mkdir(parents=True, exist_ok=True)
            # It also computes the features of frozen layers, but once.
            _check_cells(todo.values(), elsewhere)
            done = len(files) - len(todo)
            if files:
                on_start(done, len(files))
            failures = {}
            for path, outcome in run_jobs(partial(_run_cell, scratch=scratch), todo):
                details = folder / FAILED / f"{path.stem}.txt"
                if isinstance(outcome, Failure):
                    failures[path.stem] = one_line(outcome.error)
                    with suppress(OSError):  # a full disk is a reason too
                        details.parent.mkdir(exist_ok=True)
                        write_whole(details, outcome.traceback)
                else:
                    write_cell(path, outcome)
                    details.unlink(missing_ok=True)
                done += 1
                on_cell(todo[path], done, len(files))
            return failures

        tuning = cell_files(tuning_cells(sweep), folder / TUNING)
        if any(not path.exists() for path in tuning):
            # Those to come as well: tuning may take hours.
            _check_cells(sweep.cells(), elsewhere)
        failures = run_missing(tuning)
        broken = {name: why for name, why in failures.items() if not why.startswith(_DIVERGED)}
        if broken:
            return broken  # a rate must not be passed over because a disk was full
        tuned = choose_rates(
            (cell, read_cell(path).rounds if path.exists() else []) for path, cell in tuning.items()
        )
        files = cell_files(with_rates(sweep.cells(), tuned), folder / CELLS)
        write_json_lines(folder / SWEEP, [_description(sweep, tuned, files)])
        return run_missing(files)


def cell_files(cells: Iterable[Cell], folder: Path) -> dict[Path, Cell]:
    """Return the file of each cell in a folder, there or not yet."""
    return {folder / f"{c.name(inputs_fingerprint(c.config))}.jsonl": c for c in cells}


def _scratch(parent: str | None = None) -> tempfile.TemporaryDirectory[str]:
    # Its contents may be written to by a process that is about to end.
    return tempfile.TemporaryDirectory(prefix="pncs-sweep-", dir=parent, ignore_cleanup_errors=True)


def _run_cell(cell: Cell, scratch: str) -> Run:
    """Run a cell, in a folder of its own below ``scratch`` if that is here."""
    from ..client_app import app as client_app
    from ..machine.logs import errors_only
    from ..run.in_process import InProcessGrid
    from ..run.training import train

    grid = InProcessGrid(client_app, cell.clients, cell.settings)
    with errors_only(), _scratch(scratch if os.path.isdir(scratch) else None) as work:
        output = Path(work)
        # A cell that is stopped is run again from its start.
        train(grid, replace(cell.config, checkpoint=False), output, lambda row: None)
        about = {**asdict(cell), "command": cell.command}
        return Run(about, read_rounds(output), read_summary(output))


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
