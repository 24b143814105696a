"""Run a sweep: tune what is to be tuned, then every cell that has no file yet."""

import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import asdict, replace
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from pncs_flower.devices import as_fleet
from pncs_flower.files import held, write_whole
from pncs_flower.plain_text import one_line
from pncs_flower.strategies.record import write_json_lines

from ..config import Scalar
from ..folders import SWEEP
from ..machine.scratch import scratch_folder
from ..machine.surroundings import cluster_address
from ..run.early_stopping import LAST
from ..run.folder import read_rounds, read_summary
from ..run.preflight import check_device, check_run
from ..scores import ACCURACY, LEAST, score_name
from ..task import inputs_fingerprint, load_inputs
from ..validation import in_plain_words, naming_what_wants
from .cell import CELLS, Cell, Run, read_cell, write_cell
from .failure import Failure
from .pool import Moved, RunJobs, pool
from .results import Tuned, make_folder, refuse_other_results
from .sweep import Sweep, short

TUNING = "tuning"
"""Folder with the files of the runs that chose the learning rates."""

FAILED = "failed"
"""Folder with the traceback of each cell that failed the last time."""

OnRound = Callable[[Cell, Mapping[str, Any]], None]
"""Called with a cell and the row of a round of it."""

# Seeds of tuning start here: its partitions and initial weights are none of the sweep's.
_FIRST_SEED = 1000

# How the reason begins where too large a learning rate left no finite update.
_DIVERGED = ("SelectionError: ", "EmptyRoundsError: ", "NoSummariesError: ")


def run_sweep(
    sweep: Sweep,
    folder: Path,
    workers: int | None,
    on_cell: Callable[[Cell, int, int], None],
    on_start: Callable[[int, int], None] = lambda done, total: None,
    on_round: OnRound | None = None,
    players: int = 1,
    command: str = "",
    file: str = "",
    shared: RunJobs | None = None,
    where: str = "",
    on_others: Callable[[int], None] = lambda count: None,
) -> dict[str, str]:
    """Run what is missing, and return the reason of each cell that failed."""
    # What cannot be run, a damaged file or another process in the folder is an error before
    # anything runs. ``on_start(done, total)`` is called then, ``on_cell(cell, done, total)``
    # after each cell. Of cells in this process (``workers`` = 0) ``on_round`` gets each round too,
    # and so many processes play the clients. ``command`` and ``file`` are for the report: how to
    # run the sweep again. ``shared`` is of a `pool` of so many workers that other sweeps use too.
    # ``where`` is what an error says first of what cannot be run, such as the name of a file.
    # ``on_others(count)`` is called if the folder was described with runs that are none of these.
    refuse_other_results(folder, SWEEP)
    elsewhere = workers != 0 and cluster_address() is not None
    check = partial(check_cells, elsewhere=elsewhere, where=where)
    # What cells write meanwhile is removed at the end, also of those whose process was killed.
    own = pool(workers, sweep.strategies) if shared is None else nullcontext(shared)
    with ExitStack() as stack:
        run_jobs = stack.enter_context(own)  # first, as what it forks should have no thread beside
        if is_new := not (folder / SWEEP).exists():  # of what cannot be run nothing is left behind
            check([*tuning_cells(sweep), *sweep.cells()])
        make_folder(folder)
        stack.enter_context(held(folder))
        scratch = stack.enter_context(scratch_folder("sweep-"))
        run_cell = partial(_run_cell, scratch=str(scratch))
        if workers == 0:
            run_cell = partial(run_cell, on_round=on_round, players=players)

        def missing(files: Mapping[Path, Cell]) -> dict[Path, Cell]:
            todo = {path: cell for path, cell in files.items() if not path.exists()}
            for path in files.keys() - todo.keys():
                read_cell(path, files[path])  # a damaged one is told now and not after hours
            # It also computes the features of frozen layers, but once.
            if not is_new:
                check(todo.values())
            for parent in {path.parent for path in files}:
                parent.mkdir(parents=True, exist_ok=True)
            return todo

        def run_missing(files: Mapping[Path, Cell], todo: Mapping[Path, Cell]) -> dict[str, str]:
            done = len(files) - len(todo)
            if files:
                on_start(done, len(files))
            failures = {}
            configs = [cell.config for cell in todo.values()]
            for path, outcome in run_jobs(run_cell, todo, configs):
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

        tuning = cell_files(tuning_cells(sweep), folder / TUNING, where)
        if not is_new and any(not path.exists() for path in tuning):
            # Those to come as well: tuning may take hours.
            check(sweep.cells())
        failures = run_missing(tuning, missing(tuning))
        broken = {name: why for name, why in failures.items() if not why.startswith(_DIVERGED)}
        if broken:
            return broken  # a rate must not be passed over because a disk was full
        tuned = choose_rates(
            (cell, read_cell(path).rounds if path.exists() else []) for path, cell in tuning.items()
        )
        files = cell_files(with_rates(sweep.cells(), tuned), folder / CELLS, where)
        todo = missing(files)  # before what is there is described as another sweep's
        if others := _described(folder) - {path.name for path in files}:
            on_others(len(others))
        again = {"command": command, "file": file}
        write_json_lines(folder / SWEEP, [_description(sweep, tuned, files) | again])
        return run_missing(files, todo)


def tuning_cells(sweep: Sweep) -> list[Cell]:
    """Return the runs that are judged by validation examples; none if nothing is to be tuned."""
    if sweep.tune is None:
        return []
    cells = []
    for cell in replace(sweep, seeds=sweep.tune.seeds).cells():
        seed = _FIRST_SEED + cell.seed
        for rate in sweep.tune.lr:
            own: dict[str, Scalar] = {"seed": seed, "evaluate-on": "validation", "lr": rate}
            cells.append(replace(cell, seed=seed, settings={**cell.settings, **own}))
    return cells


def choose_rates(outcomes: Iterable[tuple[Cell, Sequence[Mapping[str, Any]]]]) -> list[Tuned]:
    """Return the best rate of each panel and line, the smallest of equals; no rounds: it failed."""
    found: dict[tuple[str, str], dict[float, list[list[float]]]] = {}
    name = ACCURACY  # the same of all runs
    for cell, rounds in outcomes:
        by_rate = found.setdefault((cell.panel, cell.line), {})
        name = score_name(rounds[-1]) if rounds else name
        last = [float(row[name]) for row in rounds[-LAST:]]
        by_rate.setdefault(float(cell.settings["lr"]), []).append(last)
    chosen = []
    for line, by_rate in found.items():
        if not any(last for runs in by_rate.values() for last in runs):
            raise ValueError(
                f"{', '.join(line)}: no run with any of the learning rates came to an end: give "
                f"smaller ones in [tune]; their tracebacks are in the folder {FAILED}"
            )
        means = {
            rate: sum(sum(last) / len(last) if last else LEAST[name] for last in runs) / len(runs)
            for rate, runs in sorted(by_rate.items())
        }
        best = max(means, key=means.__getitem__)  # the first of equals, so the smallest
        chosen.append(Tuned(*line, best, {short(rate): mean for rate, mean in means.items()}))
    return chosen


def with_rates(cells: Sequence[Cell], tuned: Sequence[Tuned]) -> list[Cell]:
    """Return the cells, each with the learning rate of its panel and line, if one was chosen."""
    rates = {(each.panel, each.line): {"lr": each.lr} for each in tuned}
    return [
        replace(cell, settings={**cell.settings, **rates.get((cell.panel, cell.line), {})})
        for cell in cells
    ]


def cell_files(cells: Iterable[Cell], folder: Path, where: str = "") -> dict[Path, Cell]:
    """Return the file of each cell in a folder, there or not yet; ``where`` is as in a check."""
    devices: dict[str, str] = {}
    files = {}
    for cell in cells:
        config = cell.config
        with naming_what_wants(where):
            found = inputs_fingerprint(config)
        if config.has_devices_file:
            if config.devices not in devices:
                devices[config.devices] = _devices_fingerprint(config.devices)
            found += devices[config.devices]
        files[folder / f"{cell.name(found)}.jsonl"] = cell
    return files


def _devices_fingerprint(path: str) -> str:
    """Hash a file of devices, by its contents; a bad line is told now."""
    as_fleet(path)
    return blake2b(Path(path).expanduser().read_bytes(), digest_size=16).hexdigest()


def _run_cell(
    cell: Cell, moved: Moved, scratch: str, on_round: OnRound | None = None, players: int = 1
) -> Run:
    """Run a cell, in a folder of its own below ``scratch`` if that is here."""
    from ..client_app import app as client_app
    from ..run.in_process import InProcessGrid
    from ..run.training import train

    def show(row: Mapping[str, Any]) -> None:
        if on_round is not None:
            on_round(cell, row)

    config = moved(cell.config)
    with (
        _errors_only(),
        # On another machine there is none.
        scratch_folder("sweep-", scratch if os.path.isdir(scratch) else None) as output,
        InProcessGrid(client_app, cell.clients, config.to_run_config(), workers=players) as grid,
    ):
        # A cell that is stopped is run again from its start.
        train(grid, replace(config, checkpoint=False), output, show)
        about = {**asdict(cell), "command": cell.command}
        rounds = read_rounds(output)
        for row in rounds:  # of a thousand clients larger than all else, and the command has it
            row.pop("timeline", None)
        return Run(about, rounds, read_summary(output))


@contextmanager
def _errors_only() -> Iterator[None]:
    """Log nothing of Flower's but errors, until the end of the block."""
    logger = logging.getLogger("flwr")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _described(folder: Path) -> set[str]:
    """Return the files of runs that a folder has and describes; none if that is damaged."""
    with suppress(OSError, ValueError, TypeError, KeyError):
        named = json.loads((folder / SWEEP).read_text(encoding="utf-8"))["cells"]
        return {path.name for path in (folder / CELLS).glob("*.jsonl")} & {*named}
    return set()


def _description(sweep: Sweep, tuned: list[Tuned], files: Mapping[Path, Cell]) -> dict[str, Any]:
    about = TypeAdapter(Sweep).dump_python(sweep, mode="json", by_alias=True)
    # Said once and for all: the first line that has a result may be another one.
    about["report"]["reference"] = sweep.reference
    return {
        **about,
        "tuned": [asdict(each) for each in tuned],
        "cells": [path.name for path in files],
        "panels": list(dict.fromkeys(cell.panel for cell in files.values())),
    }


def check_cells(cells: Iterable[Cell], elsewhere: bool, where: str = "") -> None:
    """Refuse what can be known to go wrong in a cell, and what many of them share but once.

    ``elsewhere`` is whether they run on machines whose devices are not known; ``where`` is what an
    error says first.
    """
    cells, seen = list(cells), set[object]()
    panels = {cell.panel for cell in cells}
    for cell in cells:
        config = cell.config
        place = [cell.line, f"seed {cell.seed}"]
        if len(panels) > 1:
            place.insert(0, cell.panel)
        # Every seed has a partition of its own; nothing else depends on it, or on the rate.
        settings, partition = replace(config, seed=0, lr=1.0), config.of_parts()
        with in_plain_words(f"{where}{', '.join(place)}: "), naming_what_wants(where):
            if settings not in seen:
                if not elsewhere:  # whose devices are not known
                    check_device(config)
                check_run(config)
            if partition not in seen:
                load_inputs(config).divide(config, cell.clients)
        seen |= {settings, partition}
