"""`pncs compare`: rules side by side, a sweep that is given on the command line."""

import json
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..choices import CHOICES, Scalar, default_run_config, is_rule, nearest
from ..folders import SWEEP
from .console import note, note_unused, parse_setting, said_plainly
from .given import given_command
from .options import (
    ALL,
    PATH,
    Clients,
    DataDir,
    DataSet,
    Model,
    NumSelected,
    Rounds,
    Settings,
    names,
)
from .runs import carry_out, stoppable
from .sweep import FULL_DISK, show_report

if TYPE_CHECKING:
    from ..config import Config

FIRST = ("pncs", "sketched-mean", "uniform")
"""What is compared if nobody says it."""

_TARGETS = (0.5, 0.6, 0.7, 0.8, 0.9)

EXAMPLES = """
[bold]Examples[/bold]

pncs compare pncs sketched-mean uniform --seeds 3

pncs compare pncs "pncs rule.p=2" "pncs queue-length=8" round-robin all

pncs compare gradient-memory uniform --clients 100 --num-selected 10 --set dirichlet-alpha=0.1

pncs compare pncs mypackage.rules:MyRule --dataset fashion-mnist --model cnn --output runs/mine
"""


def compare(
    rules: Annotated[
        list[str] | None,
        typer.Argument(metavar="[RULE]...", autocompletion=names(*CHOICES["strategy"], ALL)),
    ] = None,
    *,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each rule, with seeds from 0.")] = 3,
    clients: Clients = None,
    rounds: Rounds = None,
    num_selected: NumSelected = None,
    dataset: DataSet = None,
    data_dir: DataDir = None,
    model: Model = None,
    settings: Settings = None,
    target: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            help="Accuracy: the table says in which round it is reached. "
            "[dim]\\[default: the highest tenth from 0.5 on that all rules reach][/dim]",
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Processes that play clients; 1: this one does. "
            "[dim]\\[default: the CPU cores][/dim]",
        ),
    ] = None,
    output: Annotated[
        Path,
        typer.Option(
            click_type=PATH,
            help="Folder for the results: this one itself. What is there already is not run again.",
        ),
    ] = Path("runs/compare"),
) -> None:
    """Run rules side by side on this machine, and show a picture and a table.

    A rule is one that pncs rules lists, module:Rule for one of yours, or all, where every client
    sends. In quotes it has settings of its own: "pncs rule.p=2 lr=0.05". Without any rule these
    are pncs, sketched-mean and uniform.

    Labels are dealt unequally by a Dirichlet distribution, for that suits any number of clients;
    --set partition=iid, or --set shards-per-client=2, has them otherwise.
    """
    chosen: dict[str, Scalar | None] = {
        "num-rounds": rounds,
        "num-selected": num_selected,
        "dataset": dataset,
        "data-dir": data_dir and str(Path(data_dir).expanduser().resolve()),
        "model": model,
    }
    with said_plainly(FULL_DISK), stoppable():
        given = {key: value for key, value in chosen.items() if value is not None}
        given |= dict(parse_setting(text) for text in settings or [])
        clients = clients or 10
        from ..config import unused_settings
        from ..sweep.comparison import comparison

        wanted = comparison(
            _read_rules(rules or FIRST),
            _usual(given, clients) | given,
            clients=clients,
            seeds=seeds,
            targets=_TARGETS if target is None else [target],
        )
        config = wanted.cells()[0].config
        if not rules:
            note(
                f"no rule is given, so these are compared: {', '.join(FIRST)} (pncs rules lists "
                "all)"
            )
        note_unused(unused_settings(config))
        _note_other_report(output, wanted.rules)
        failed = carry_out(
            wanted,
            output,
            workers=0,
            players=partial(_players, config, wanted.clients, workers),
            command=given_command(),
        )
        show_report(output)
    raise typer.Exit(1 if failed else 0)


def _note_other_report(output: Path, rules: Collection[str]) -> None:
    """Say of whom a report was, all of whose rules the new one in its place does not have."""
    try:
        before = json.loads((output / SWEEP).read_bytes())["rules"]
    except (OSError, ValueError, KeyError, TypeError):  # there is none, or it is told otherwise
        return
    if set(before) - set(rules):
        note(
            f"the report in {output} was of {', '.join(before)}; the runs are kept, and its "
            "command, given again, shows it again"
        )


def _usual(given: Mapping[str, Scalar], clients: int) -> dict[str, Scalar]:
    """Return settings that suit any number of clients and classes, which the app's own do not."""
    dealt = "shards" if "shards-per-client" in given else "dirichlet"
    many = int(default_run_config()["num-selected"])
    return {"partition": dealt, "num-selected": min(many, clients)}


def _read_rules(texts: Sequence[str]) -> dict[str, dict[str, Scalar]]:
    """Return the settings of each rule by what it is called."""
    read: dict[str, dict[str, Scalar]] = {}
    for name, own in map(_read_rule, texts):
        if name in read:
            raise ValueError(
                f"{name} is given twice: give each rule once, with --seeds for more runs, or "
                'in quotes with settings of its own, such as "pncs lr=0.05"'
            )
        read[name] = own
    return read


def _read_rule(text: str) -> tuple[str, dict[str, Scalar]]:
    """Return what a rule is called, and its settings, if it has any beside its name."""
    name, *settings = text.split() or [""]
    if not name:
        raise ValueError("a rule has no name: give one, such as pncs (pncs rules lists them)")
    if "=" in name:
        raise ValueError(
            f'{name} is no rule: put it in quotes with the rule that it is for, "pncs {name}", or '
            f"give it to all with --set {name}"
        )
    if "," in name:
        raise ValueError(f"{name}: give rules apart, as {' '.join(name.split(','))}")
    if name != ALL and not is_rule(name):
        raise ValueError(f"there is no rule {name!r}: {nearest(name, [*CHOICES['strategy'], ALL])}")
    if not settings:
        return name, {}
    if name == ALL:
        raise ValueError(f'"{text}": {ALL} has no settings of its own: give them to all with --set')
    given = [parse_setting(each, f'"{text}": ') for each in settings]
    own = dict(given)
    if len(own) < len(given):
        raise ValueError(f'"{text}": a setting is given twice: give each of them once')
    if "strategy" in own:
        raise ValueError(f'"{text}": {name} is the rule, so it has no other strategy')
    return " ".join([name, *settings]), {"strategy": name, **own}


def _players(config: "Config", clients: int, wanted: int | None) -> int:
    """Return how many processes play clients: one where they compute on a GPU."""
    from pncs_flower.clients.device import choose_device

    from ..run.preflight import choose_workers

    # Of a process that has used the GPU, as the server does, no workers can be forked.
    if choose_device(config.device).type == "cpu":
        return choose_workers(config, clients, wanted).at_once
    if wanted not in (None, 1):
        raise ValueError(
            f"workers = {wanted}, but clients compute on a GPU, where a comparison has one "
            "process: leave it out, or write a sweep (docs/sweeps.md): a process for each run"
        )
    return 1
