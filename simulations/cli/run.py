"""The command `pncs`: one command to run the app, and a person told how it goes."""

import contextlib
import logging
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import typer

from ..choices import CHOICES, Scalar, default_run_config
from .bench import BENCHMARKS, QUICK, bench
from .board import BOARDS
from .compare import EXAMPLES as COMPARISONS
from .compare import compare
from .console import (
    note_unused,
    out,
    parse_setting,
    said_plainly,
    show_tracebacks,
    write_what_cannot_be_shown,
)
from .data import data
from .engines import Engine, choose_place, resumed, run_in_process, run_on_ray
from .options import (
    PATH,
    Clients,
    DataDir,
    DataSet,
    Model,
    NumSelected,
    Rounds,
    Settings,
    Suggesting,
    knob,
)
from .rules import rules
from .sweep import NAMES, report, reproduce, sweep


class _Commands(Suggesting):
    """Commands that take ``--traceback`` anywhere."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take ``--traceback`` wherever it stands: it is added to the end of what has failed."""
        others = [text for text in args if text != _TRACEBACK]
        return super().parse_args(ctx, [_TRACEBACK] * (others != args) + others)


_TRACEBACK = "--traceback"
_COMPLETION = "_PNCS_COMPLETE"  # in the environment when a shell asks what may come


app = typer.Typer(
    cls=_Commands,
    invoke_without_command=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)

EXAMPLES = """
[bold]Examples[/bold]

pncs run

pncs run --clients 100 --num-selected 10 --rounds 50 --seed 1

pncs run --strategy uniform --dataset fashion-mnist --model cnn

pncs run --gpus-per-client 0.25 --set lr=0.05 --set rule.layers=fc2

pncs run --engine in-process --output runs/first

pncs run --strategy uniform --set combine=fedvarp

pncs run --strategy sketched-mean --set combine=sketched-mean:store=50

pncs sweep sweep.toml --seeds 5

pncs run --resume runs/first --rounds 40
"""


NEXT = """\
pncs: which clients send their update, in federated learning with Flower

pncs compare                    three rules side by side: a picture and a table
pncs run --engine in-process    one run, round by round
pncs rules                      the rules; pncs rules pncs: what one does
pncs data                       the data sets, and how to get what is missing
pncs --help                     all commands; pncs run --help: what one takes
pncs --install-completion       has the tab key complete all of these"""


def _show_version(wanted: bool) -> None:
    if wanted:
        out.print(f"pncs-flower {metadata.version('pncs-flower')}", highlight=False)
        raise typer.Exit


@app.callback()
def _callback(
    context: typer.Context,
    traceback: Annotated[
        bool,
        typer.Option(
            _TRACEBACK,
            envvar="PNCS_TRACEBACK",
            help="Show where an error comes from; after any command.",
        ),
    ] = False,
    _version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_show_version, help="Say which it is."),
    ] = False,
) -> None:
    """Diverse client selection for Flower."""
    show_tracebacks(traceback)
    if context.invoked_subcommand is None:
        out.print(NEXT, soft_wrap=True)


@app.command(epilog=EXAMPLES)
def run(
    clients: Clients = None,
    rounds: Rounds = None,
    strategy: Annotated[
        str | None,
        knob(
            "strategy",
            "pncs, uniform, ..., or module:Rule for a rule of yours.",
            complete=CHOICES["strategy"],
        ),
    ] = None,
    num_selected: NumSelected = None,
    queue_length: Annotated[
        int | None,
        knob("queue-length", "Clients that rest; -1: as many as leaves a choice for pncs, else 0."),
    ] = None,
    dataset: DataSet = None,
    data_dir: DataDir = None,
    model: Model = None,
    device: Annotated[
        str | None, knob("device", "auto, cpu or cuda.", complete=CHOICES["device"])
    ] = None,
    seed: Annotated[int | None, knob("seed", "Seed of everything random.")] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            click_type=PATH,
            help="Folder for the results. [dim]\\[default: runs/<time>-<strategy>][/dim]",
        ),
    ] = None,
    settings: Settings = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            click_type=PATH,
            metavar="FOLDER",
            help="Go on with the run in this folder, with its settings; --rounds may be given.",
        ),
    ] = None,
    engine: Annotated[
        Engine | None,
        typer.Option(
            help="Flower's simulation on Ray, or processes of our own here; the results are the "
            "same. [dim]\\[default: ray, or that of the run that goes on][/dim]"
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            help="Processes that play clients; 1: this one does (in-process). "
            "[dim]\\[default: the CPU cores, or the GPUs that clients compute on][/dim]",
            min=1,
        ),
    ] = None,
    cpus_per_client: Annotated[
        int | None,
        typer.Option(help="CPU cores for each client (ray). [dim]\\[default: 1][/dim]"),
    ] = None,
    gpus_per_client: Annotated[
        float | None,
        typer.Option(
            help="Share of a GPU for each client, such as 0.25 (ray). [dim]\\[default: 0][/dim]"
        ),
    ] = None,
    logical_gpus: Annotated[
        int | None,
        typer.Option(
            help="GPUs to pretend, with --device cpu, to rehearse a placement (ray). "
            "[dim]\\[default: 0][/dim]"
        ),
    ] = None,
) -> None:
    """Train with diverse client selection, and show each round."""
    chosen: dict[str, Scalar | None] = {
        "num-rounds": rounds,
        "strategy": strategy,
        "num-selected": num_selected,
        "queue-length": queue_length,
        "dataset": dataset,
        "data-dir": data_dir and str(Path(data_dir).expanduser().resolve()),
        "model": model,
        "device": device,
        "seed": seed,
        "output-dir": None if output is None else str(output),
    }
    where: dict[str, Scalar | None] = {
        "engine": engine and engine.value,
        "workers": workers,
        "cpus-per-client": cpus_per_client,
        "gpus-per-client": gpus_per_client,
        "logical-gpus": logical_gpus,
    }
    with said_plainly():
        given = {key: value for key, value in chosen.items() if value is not None}
        given |= dict(parse_setting(text) for text in settings or [])
        # pydantic takes a moment
        from ..config import Config, check_parameters, check_selected, unused_settings

        about: Mapping[str, Any] = {}
        if resume is None:
            config, clients = Config.from_run_config(default_run_config() | given), clients or 10
        else:
            config, clients, about = resumed(resume.resolve(), given, clients)
        check_selected(config, clients)
        check_parameters(config)
        place = choose_place({key: v for key, v in where.items() if v is not None}, about)
        from ..data.datasets import find_dataset  # NumPy takes a moment, and no wrong setting waits

        usual = find_dataset(config.dataset)
        if usual.files and not (
            config.data_dir or usual.usual_folder.is_absolute()
        ):  # Ray's workers are elsewhere
            config = replace(config, data_dir=str(usual.usual_folder.resolve()))
        if config.has_devices_file:  # the same; and a bad line is told before anything starts
            config = replace(config, devices=str(Path(config.devices).expanduser().resolve()))
            from pncs_flower.devices import as_fleet

            as_fleet(config.devices)
        note_unused(unused_settings(config))
        carry_out = run_on_ray if place["engine"] == Engine.RAY else run_in_process
        carry_out(config, clients, place)


app.command(epilog=COMPARISONS)(compare)
app.command()(sweep)
app.command()(report)
app.command(epilog=f"Names: {', '.join([*NAMES, *BOARDS])}; or all.")(reproduce)
app.command()(rules)
app.add_typer(data, name="data")
app.command(epilog=f"Names: {', '.join(BENCHMARKS)}; without one, {', '.join(QUICK)}.")(bench)


def main() -> None:
    """Run the command line."""
    write_what_cannot_be_shown()
    if _COMPLETION in os.environ:
        os.environ["COLUMNS"] = "1000"  # a shell takes each line for a candidate
    try:
        app()
    except SystemExit as end:
        if isinstance(end.code, int) and end.code > 128:
            _end_now(end.code)
        raise


def _end_now(code: int) -> None:
    """End with the code of a signal: all is cleaned up, and libraries' own ends may crash."""
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # a pipe that nobody reads any more
            stream.flush()
    os._exit(code)
