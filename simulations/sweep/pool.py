"""Where cells run: one after the other in this process, or as many at once as Ray has room for."""

import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from traceback import format_exception
from typing import Any, NamedTuple

from pncs_flower.plain_text import one_line, without_colours

from ..machine.signals import keeping_handlers
from ..machine.surroundings import cluster_address, short_folder
from ..run.folder import read_rounds, read_summary
from .sweep import Cell

__all__ = ["Failure", "RunCells", "pool"]

Rows = list[dict[str, Any]]
Cells = Mapping[Path, Cell]


class Failure(NamedTuple):
    """Why a cell failed: in one line, and at length."""

    reason: str
    traceback: str


Outcome = tuple[Path, Rows | Failure]
RunCells = Callable[[Cells], Iterator[Outcome]]


@contextmanager
def pool(workers: int) -> Iterator[RunCells]:
    """Offer a function that runs cells and yields them as they end; 0 workers: in this process.

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
        summary = read_summary(output)
        rounds = read_rounds(output)
    return [{**asdict(cell), "command": cell.command}, *rounds, summary]


def _run_here(cells: Cells, scratch: str) -> Iterator[Outcome]:
    for path, cell in cells.items():
        outcome: Rows | Failure
        try:
            outcome = _run_cell(cell, scratch)
        except Exception as error:  # a cell fails alone, whatever it fails of
            outcome = Failure(one_line(error), "".join(format_exception(error)))
        yield path, outcome


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
        if cells and not started:
            _start_ray(workers, address, folder)
            started = True
        if cells:
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
