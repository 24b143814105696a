"""Run the cells of a sweep, as many at once as there are processors; go on where it stopped."""

import json
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from traceback import format_exception
from typing import Any, NamedTuple

from pncs_flower.files import write_whole
from pncs_flower.plain_text import one_line, without_colours
from pncs_flower.strategies.record import write_json_lines
from pncs_flower.strategies.resume.lock import holding

from ..machine.processes import keeping_handlers
from ..machine.ray_cluster import cluster_address
from ..machine.surroundings import short_folder
from ..run.folder import read_rounds
from ..task import inputs_fingerprint
from .cell_file import read_cell
from .check import CellChecks
from .sweep import PLACES, Cell, Sweep
from .tuning import choose_rates, tuning_cells, with_rates

__all__ = ["CELLS", "SWEEP", "cell_files", "run_sweep"]

CELLS = "cells"
"""Folder with a file of JSON lines for each finished cell: what it is, its rounds, its summary."""

TUNING = "tuning"
"""Folder with such files for the runs that chose the learning rates."""

FAILED = "failed"
"""Folder with the traceback of each cell that failed the last time."""

SWEEP = "sweep.json"
"""Name of the file that says what the sweep is."""

# How the reason begins where too large a learning rate left no finite update.
_DIVERGED = ("SelectionError: ", "EmptyRoundsError: ", "NoSummariesError: ")

Rows = list[dict[str, Any]]
Outcome = tuple[Path, "Rows | Failure"]
Cells = Mapping[Path, Cell]


class Failure(NamedTuple):
    """Why a cell failed: in one line, and at length."""

    reason: str
    traceback: str


RunCells = Callable[[Cells], Iterator[Outcome]]


def cell_files(cells: Iterable[Cell], folder: Path) -> dict[Path, Cell]:
    """Return the file of each cell in a folder, there or not yet."""
    named: dict[Path, Cell] = {}
    for cell in cells:
        named[folder / f"{cell.name(inputs_fingerprint(cell.config))}.jsonl"] = cell
    return named


def run_sweep(
    sweep: Sweep,
    folder: Path,
    workers: int,
    on_cell: Callable[[Cell, int, int], None],
    on_start: Callable[[int, int], None] | None = None,
) -> dict[str, str]:
    """Tune what the sweep wants tuned, then run every cell that has no file yet.

    Parameters
    ----------
    sweep : Sweep
        What to run.
    folder : Path
        Takes ``sweep.json`` and a file for each cell, whole or not at all; and in ``failed`` the
        tracebacks of those that failed.
    workers : int
        Processes, each with one cell at a time: Ray tasks, on the cluster of ``RAY_ADDRESS`` if
        that is set. 0 runs one cell after the other in this process.
    on_cell : callable
        Called as ``on_cell(cell, done, total)`` when a cell is over, well or not; those of the
        tuning are counted by themselves.
    on_start : callable, optional (default: None)
        Called as ``on_start(done, total)`` before the first cell, with those that are there.

    Returns
    -------
    dict of str to str
        Cells that failed, with the reason. If the tuning failed, no other cell is run.

    Raises
    ------
    ValueError, FileNotFoundError
        If a setting is wrong, data or weights are missing, the data cannot be divided so, the
        file of a cell is damaged, or another process runs a sweep in this folder; before anything
        runs. If no learning rate is of use to a rule.
    """
    folder.mkdir(parents=True, exist_ok=True)
    checks = CellChecks(elsewhere=workers > 0 and "RAY_ADDRESS" in os.environ)
    with holding(folder), _pool(workers) as run_cells:

        def finish(files: Cells) -> dict[str, str]:
            return _finish(files, checks, run_cells, on_cell, on_start or (lambda *_: None))

        tuning = cell_files(tuning_cells(sweep), folder / TUNING)
        if any(not path.exists() for path in tuning):
            checks.check(sweep.cells())  # those to come as well: tuning may take hours
        failures = finish(tuning)
        broken = {name: why for name, why in failures.items() if not why.startswith(_DIVERGED)}
        if broken:
            return broken  # a rate must not be passed over because a disk was full
        tuned = choose_rates(
            [(cell, read_cell(path)[1] if path.exists() else []) for path, cell in tuning.items()]
        )
        files = cell_files(with_rates(sweep.cells(), tuned), folder / CELLS)
        names = [path.name for path in files]
        # Said once and for all: the first line that has a result may be another one.
        resolved = replace(sweep, report=replace(sweep.report, reference=sweep.reference))
        about = {
            **asdict(resolved),
            "tuned": [asdict(each) for each in tuned],
            "cells": names,
            "panels": list(dict.fromkeys(cell.panel for cell in files.values())),
        }
        write_json_lines(folder / SWEEP, [about])
        return finish(files)


def _finish(
    files: Cells,
    checks: CellChecks,
    run_cells: RunCells,
    on_cell: Callable[[Cell, int, int], None],
    on_start: Callable[[int, int], None],
) -> dict[str, str]:
    """Run the cells that have no file yet, and return those that failed."""
    todo = {path: cell for path, cell in files.items() if not path.exists()}
    for path in files.keys() - todo.keys():
        _check_file(path, files[path])  # a damaged one is told now and not after hours
    for folder in {path.parent for path in files}:
        folder.mkdir(parents=True, exist_ok=True)
    # It also computes the features of frozen layers, but once.
    checks.check(todo.values())
    failures: dict[str, str] = {}
    done = len(files) - len(todo)
    if files:
        on_start(done, len(files))
    for path, outcome in run_cells(todo):
        done += 1
        details = path.parent.parent / FAILED / f"{path.stem}.txt"
        if isinstance(outcome, Failure):
            failures[path.stem] = outcome.reason
            with suppress(OSError):  # a full disk is a reason too
                details.parent.mkdir(exist_ok=True)
                write_whole(details, outcome.traceback)
        else:
            write_json_lines(path, outcome)
            details.unlink(missing_ok=True)
        on_cell(files[path], done, len(files))
    return failures


def _check_file(path: Path, cell: Cell) -> None:
    """Refuse a file that is not of this cell: a name says only part of what a cell is."""
    about = read_cell(path)[0]
    found = {"stop-after": 0, **about["settings"], "clients": about["clients"]}
    for key, value in {**cell.settings, "clients": cell.clients}.items():
        if key not in PLACES and found.get(key) != value:
            raise ValueError(
                f"{path} is damaged: it was run with {key} = {found.get(key)!r}, not {value!r}: "
                "delete it and run again"
            )


def _run_cell(cell: Cell, scratch: str) -> Rows:
    """Run a cell, in a folder of its own below ``scratch`` if that is on this machine."""
    from ..client_app import app as client_app
    from ..machine.logs import errors_only
    from ..run.in_process import InProcessGrid
    from ..run.training import train

    grid = InProcessGrid(client_app, cell.clients, cell.settings)
    with errors_only(), _folder(scratch if os.path.isdir(scratch) else None) as work:
        output = Path(work)
        # A cell that is stopped is run again from its start.
        train(grid, replace(cell.config, checkpoint=False), output, lambda row: None)
        summary = json.loads((output / "summary.json").read_text(encoding="utf-8"))
        rounds = read_rounds(output)
    return [{**asdict(cell), "command": cell.command}, *rounds, summary]


@contextmanager
def _pool(workers: int) -> Iterator[RunCells]:
    """Offer a function that runs cells and yields them as they end.

    What the cells write meanwhile is removed at the end, also of those whose process was killed.
    """
    with _folder() as scratch:
        if workers == 0:
            yield partial(_run_here, scratch=scratch)
            return
        with _ray_pool(workers, scratch) as run_cells:
            yield run_cells


def _folder(parent: str | None = None) -> tempfile.TemporaryDirectory[str]:
    # Its contents may be written to by a process that is about to end.
    return tempfile.TemporaryDirectory(prefix="pncs-sweep-", dir=parent, ignore_cleanup_errors=True)


@contextmanager
def _ray_pool(workers: int, scratch: str) -> Iterator[RunCells]:
    # Ray's usage report wants the network; its warning on GPUs is about machines with some.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    started = False
    address = cluster_address()
    folder = short_folder() if address is None else None

    def run_on_ray(cells: Cells) -> Iterator[Outcome]:
        nonlocal started
        if not cells:
            return

        if not started:
            _start_ray(workers, address, folder)
            started = True
        yield from _run_on_ray(cells, workers, scratch)

    try:
        yield run_on_ray
    finally:
        if started:
            import ray

            ray.shutdown()
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


def _start_ray(workers: int, address: str | None, folder: Path | None) -> None:
    """Start Ray with a folder for what it keeps, or join the cluster of ``RAY_ADDRESS``."""
    import ray

    try:
        with keeping_handlers():
            ray.init(
                # Else Ray would join whatever cluster somebody has started on this machine.
                address="local" if address is None else None,
                num_cpus=workers if address is None else None,
                include_dashboard=False if address is None else None,
                _temp_dir=None if folder is None else str(folder),
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
    except (ConnectionError, RuntimeError, ValueError) as error:
        if address is None:
            raise
        raise ValueError(f"RAY_ADDRESS = {address}: {error}") from error


def _run_here(cells: Cells, scratch: str) -> Iterator[Outcome]:
    for path, cell in cells.items():
        outcome: Rows | Failure
        try:
            outcome = _run_cell(cell, scratch)
        except Exception as error:  # a cell fails alone, whatever it fails of
            outcome = Failure(one_line(error), "".join(format_exception(error)))
        yield path, outcome


def _run_on_ray(cells: Cells, workers: int, scratch: str) -> Iterator[Outcome]:
    import ray

    # A cell that killed its worker would do so again.
    task = ray.remote(num_cpus=1, max_retries=0)(_run_cell)
    running: dict[Any, Path] = {}
    todo = iter(cells)
    while True:
        while len(running) < workers and (path := next(todo, None)) is not None:
            running[task.remote(cells[path], scratch)] = path
        if not running:
            break
        finished, _ = ray.wait(list(running), num_returns=1)
        for reference in finished:
            outcome: Rows | Failure
            try:
                outcome = ray.get(reference)
            except ray.exceptions.RayError as error:
                cause = getattr(error, "cause", None)
                reason = one_line(cause if isinstance(cause, Exception) else error)
                outcome = Failure(reason, without_colours(str(error)))  # with the worker's
            yield running.pop(reference), outcome
