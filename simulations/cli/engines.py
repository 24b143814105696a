"""Carry out `pncs run`: with which settings, on which engine, and what a person is told."""

import contextlib
import logging
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pncs_flower.plain_text import counted

from ..choices import Scalar, default_run_config
from ..folders import SETTINGS
from .console import err, note, out, progress_bar

if TYPE_CHECKING:
    from ..config import Config

_CHECKING = "Checking settings, data and machine"

# Kinds of errors that a run which goes on with the same settings, and so the same bits, meets again
# for sure; and those that may have had another reason than its settings, such as too little memory.
_AGAIN = {"ValueError", "TypeError", "SelectionError", "UnsavableError"}
_PERHAPS_AGAIN = {"EmptyRoundsError", "NoSummariesError"}


class Engine(StrEnum):
    """Where clients run."""

    RAY = "ray"
    IN_PROCESS = "in-process"


PLACES: Mapping[Engine, Mapping[str, str]] = {
    Engine.RAY: dict.fromkeys(
        ("cpus-per-client", "gpus-per-client", "logical-gpus"),
        "in process, --workers says how many compute at once and share the GPUs",
    ),
    Engine.IN_PROCESS: {"workers": "on Ray, --cpus-per-client says how many compute at once"},
}
"""What clients get of the machine with each engine, and what to give with the other in its place.

That is not among a run's settings, for it changes no result.
"""


def choose_place(given: Mapping[str, Scalar], before: Mapping[str, Any]) -> dict[str, Scalar]:
    """Return the engine and what clients get of the machine: as given, or as the run had it before.

    What is not in it is the engine's default.
    """
    engine = Engine(str(given.get("engine") or before.get("engine", Engine.RAY)))
    for other, keys in PLACES.items():
        for key, instead in keys.items():
            if key in given and other is not engine:
                whose = "" if "engine" in given else f", and the engine is {engine}"
                raise ValueError(f"--{key} is for --engine {other}{whose}: leave it out; {instead}")
    known = before if before.get("engine") == engine else {}
    own = {key: known[key] for key in PLACES[engine] if key in known}
    return {"engine": engine.value} | own | dict(given)


def resumed(
    folder: Path, given: Mapping[str, Scalar], clients: int | None
) -> tuple["Config", int, Mapping[str, Any]]:
    """Return of a run that is to go on the settings, how many clients, and what is said of it."""
    from ..config import Config
    from ..folders import SWEEP
    from ..run.folder import CHECKPOINT, check_saved, is_done, read_rounds, rounds_done
    from ..run.settings import read_settings, refuse_other_settings

    if (folder / SWEEP).is_file():
        raise ValueError(
            f"{folder} holds the runs of a sweep: give the command again that began it (pncs "
            "compare, sweep or reproduce), which goes on from there"
        )
    output = given.get("output-dir", folder)
    if Path(str(output)).expanduser().resolve() != folder:
        raise ValueError(
            f"--output is {output}, but a run that goes on does so in its folder, {folder}: leave "
            "--output out, or begin another run without --resume"
        )
    (saved, about), rows = read_settings(folder), read_rounds(folder)
    # A run that was begun by flwr run knows but the clients that were there.
    before = about["clients"] or max((len(row["clients"]) for row in rows), default=None)
    if clients and before and clients != before:
        raise ValueError(
            f"--clients is {clients}, but the run in {folder} has {before}: leave --clients out"
        )
    if not (clients or before):
        raise ValueError(
            f"the run in {folder} does not say how many clients it has: give --clients"
        )
    # Settings that are newer than the run have their defaults.
    config = Config.from_run_config(default_run_config() | saved | dict(given))
    check_saved(folder, config)
    refuse_other_settings(folder, config)
    from pncs_flower.strategies.resume.checkpoint import CheckpointFolder  # and with it Flower

    done, saved_rounds = rounds_done(folder), CheckpointFolder(folder / CHECKPOINT)
    if is_done(folder, config.num_rounds):
        out.print(f"{folder} has {counted(done, 'round')} already: nothing is left to do")
    elif not saved_rounds.is_begun() and done:
        rounds = counted(done, "round")
        note(f"{folder} has no checkpoint: it starts again from round 1, and writes {rounds} anew")
    elif damaged := saved_rounds.damaged():
        note(f"it goes on from an older checkpoint, as of {'; '.join(damaged)}")
    return replace(config, resume=True, output_dir=str(folder)), clients or before or 0, about


def run_on_ray(config: "Config", clients: int, place: Mapping[str, Any]) -> None:
    """Run in Flower's simulation on Ray, and follow its rounds."""
    with progress_bar(_CHECKING):
        from ..run.flower import check_programs, run_in_flower

        check_programs()
        from ..machine.signals import exit_on_signals
        from ..machine.surroundings import cluster_address
        from ..run.cluster import joined, machines, prepare
        from ..run.folder import follow_rounds
        from ..run.preflight import (
            check_run,
            check_shares,
            detect_machine,
            note_on_asking,
            place_clients,
        )

        shares = {key.replace("-", "_"): place[key] for key in PLACES[Engine.RAY] if key in place}
        address = cluster_address()
        if address is None:
            placement = place_clients(config, clients, detect_machine(), **shares)
            check_run(config, clients, placement)
        else:
            check_shares(config, on_cluster=True, **shares)
            check_run(config, clients)
            with exit_on_signals(), joined(address, [config.strategy]):
                placement = place_clients(config, clients, machines(), **shares)
                prepare([config])
        many = note_on_asking(config, clients)
    note(many)
    config, output = _begin(config, clients, place, f"; {placement.describe()}")
    out.print("Starting Flower and Ray, which takes half a minute or more ...")
    with (
        _saying_how_to_go_on(config, output, place),
        exit_on_signals(),
        _progress(config.num_rounds) as show,
    ):
        news = follow_rounds(output)

        def follow() -> None:
            for row in news():
                show(row)

        run_in_flower(config, clients, placement, output, follow)
    _conclude(output)


def run_in_process(config: "Config", clients: int, place: Mapping[str, Any]) -> None:
    """Run on this machine, in as many worker processes as its place says, or as are of use."""
    from pncs_flower.clients.device import choose_device

    from ..client_app import app as client_app
    from ..machine.signals import exit_on_signals
    from ..run.folder import FLOWER_LOG, is_done
    from ..run.in_process import InProcessGrid
    from ..run.preflight import check_device, check_run, choose_workers, note_on_asking
    from ..run.training import train

    check_device(config)
    over = config.resume and is_done(Path(config.output_dir), config.num_rounds)
    placement = choose_workers(config, clients, 1 if over else place.get("workers"))
    with progress_bar(_CHECKING):
        check_run(config, clients, placement)  # the data that it loads are then the workers' too
    note(note_on_asking(config, clients))
    count = placement.at_once
    where = f"in {count} worker processes" if count > 1 else "one after the other in this process"
    config, output = _begin(config, clients, place, "" if over else f", {where}")
    # A worker that could not use the GPU is not to compute on the CPU in silence.
    settings = replace(config, device=choose_device(config.device).type).to_run_config()
    with (
        _flower_log(output / FLOWER_LOG),  # to which the workers write too
        _saying_how_to_go_on(config, output, place),
        exit_on_signals(),
    ):
        with (
            InProcessGrid(client_app, clients, settings, tracebacks=True, workers=count) as grid,
            _progress(config.num_rounds) as show,
        ):
            train(grid, config, output, show)
        from ..report.picture_of_round import draw_round
        from ..report.picture_of_run import draw_rounds

        draw_rounds(output)
        draw_round(output)
    _conclude(output)


def _begin(
    config: "Config", clients: int, place: Mapping[str, Scalar], where: str
) -> tuple["Config", Path]:
    """Make the run's folder, with its settings, and say where its clients are."""
    from ..run.folder import FLOWER_LOG, output_path
    from ..run.settings import keep_settings

    output = output_path(config)
    config = replace(config, output_dir=str(output))
    keep_settings(output, config, clients, place)
    out.print(f"{counted(clients, 'client')}{where}")
    out.print(f"Flower's log: {output / FLOWER_LOG}", soft_wrap=True)
    return config, output


@contextlib.contextmanager
def _saying_how_to_go_on(
    config: "Config", output: Path, place: Mapping[str, Scalar]
) -> Iterator[None]:
    """Say, where a run ends before its time, which command goes on with it."""
    from ..run.folder import FLOWER_LOG, rounds_done

    try:
        yield
    except SystemExit:
        err.print(f"Stopped. The rounds so far: {output}", soft_wrap=True)
        err.print(_how_to_go_on(config, output, place), soft_wrap=True)
        raise
    except Exception as error:
        if place["engine"] == Engine.IN_PROCESS:  # on Ray, Flower writes it
            logging.getLogger("flwr").exception("The run failed.")
            error.add_note(f"Flower's log, with the traceback: {output / FLOWER_LOG}")
        kind, own_rule = _kind(error, output), ":" in config.strategy
        if kind == "EmptyRoundsError" and rounds_done(output) >= config.num_rounds:
            error.add_note(
                "All its rounds are over: mend that, and start again in another --output"
            )
        elif kind not in _AGAIN or own_rule:
            if kind in _AGAIN | _PERHAPS_AGAIN:
                error.add_note("If something else than its settings was to blame, and is mended:")
            error.add_note(_how_to_go_on(config, output, place))
        raise


def _kind(error: Exception, output: Path) -> str:
    """Return the kind of an error, by name; of one that Flower tells, what ended the round."""
    from pncs_flower.strategies.record import ENDED

    from ..run.folder import read_rounds

    with contextlib.suppress(ValueError):  # a file that is damaged
        notes = [note for row in read_rounds(output)[-1:] for note in row["notes"]]
        for note in notes:
            kind, _, text = note.removeprefix(ENDED).partition(": ")
            if note.startswith(ENDED) and text in str(error):
                return str(kind)
    return type(error).__name__


def _how_to_go_on(config: "Config", output: Path, place: Mapping[str, Scalar]) -> str:
    from ..run.folder import is_done
    from ..run.settings import read_settings

    if is_done(output, config.num_rounds):
        return f"All its rounds are done: {shlex.join(['pncs', 'report', str(output)])}"
    if not (output / SETTINGS).is_file():
        return "Nothing was begun: the same command starts again"
    if not config.checkpoint:
        return "The run was not saved, as checkpoint = false: to start again, give another --output"
    words = ["pncs", "run", "--resume", str(output)]
    if config.resume:  # perhaps with more rounds than the folder knows of
        words += ["--rounds", str(config.num_rounds)]
    known: dict[str, Any] = {"engine": Engine.RAY.value}
    with contextlib.suppress(ValueError):  # the settings are damaged
        known |= read_settings(output)[1]
    for key, value in place.items():
        if value != known.get(key):
            words += [f"--{key}", str(value)]
    return f"To go on with it: {shlex.join(words)}"


def _conclude(output: Path) -> None:
    from ..report.of_run import PICTURE, ROUND_PICTURE, final_table

    out.print(final_table(output))
    out.print(f"Picture: {output / PICTURE}", soft_wrap=True)
    if (output / ROUND_PICTURE).is_file():
        out.print(f"A round in simulated time: {output / ROUND_PICTURE}", soft_wrap=True)


@contextlib.contextmanager
def _progress(num_rounds: int) -> Iterator[Any]:
    """Show a bar where there is a terminal, and a line per round everywhere."""
    from ..report.of_run import round_line

    with progress_bar("starting", num_rounds) as (bar, task):

        def show(row: Mapping[str, Any]) -> None:
            line = round_line(row, num_rounds)
            bar.console.print(line, soft_wrap=True)
            bar.update(task, completed=row["round"], description="training")

        yield show


@contextlib.contextmanager
def _flower_log(path: Path) -> Iterator[None]:
    """Send Flower's log to a file in place of the terminal."""
    logger = logging.getLogger("flwr")
    handlers, handler = logger.handlers[:], logging.FileHandler(path, encoding="utf-8")
    logger.handlers = [handler]
    try:
        yield
    finally:
        logger.handlers = handlers
        handler.close()
