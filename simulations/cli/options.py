"""What commands share: options, what a shell completes of them, and what was meant by others."""

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import click
import typer
from typer.core import TyperGroup

from ..choices import CHOICES, FLEETS, default_run_config, meant_by
from ..parameters import declared_parameters

ALL = "all"
"""What a comparison calls the ceiling, all clients in each round."""

_OPTIONS_OF = {"num-rounds": "rounds", "output-dir": "output"}
"""Settings of which the option has another name."""

Complete = Callable[[str], list[str]]


class Suggesting(TyperGroup):
    """Commands of which a misspelt one has the nearest told, and so has an option of theirs."""

    def invoke(self, ctx: click.Context) -> Any:
        """Carry out a command, or say what an option that it lacks is called here."""
        try:
            return super().invoke(ctx)
        except click.NoSuchOption as error:
            if error.ctx and (meant := _option_meant(error.option_name, error.ctx.command)):
                error.possibilities = [meant]  # type: ignore[misc]
            raise

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, or say once which was meant."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            # Typer from 0.20 on says it, and Click from 8.4 on says it too.
            said = "Did you mean" in error.message
            if said and getattr(error, "possibilities", None):
                error.possibilities = None  # type: ignore[attr-defined]
            if not said and args:
                error.message += f" There are {', '.join(self.list_commands(ctx))}."  # type: ignore[misc]
            raise


def _option_meant(wrong: str, command: click.Command) -> str | None:
    """Return the option that a command has for another one, or ``--set KEY=VALUE``, if any."""
    own = {name.removeprefix("--") for each in command.params for name in each.opts}
    settings = default_run_config() if "set" in own else ()
    name = wrong.removeprefix("--")
    meant = f"{name}s" if f"{name}s" in own else meant_by(name, [*own, *settings])
    if meant is None:
        return None
    if meant == "strategy" and "rules" in {each.name for each in command.params}:
        return f"pncs {command.name} RULE"
    option = _OPTIONS_OF.get(meant, meant)
    return f"--{option}" if option in own else f"--set {meant}=VALUE"


class _NamedPath(click.Path):
    """A path that says where: an empty one would be the folder in which the command is given."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Refuse an empty text, as of a shell's variable that is not set, and expand ``~``."""
        if not str(value).strip():
            self.fail("it is empty: name a folder or file (. is the one you are in)", param, ctx)
        return Path(os.fsdecode(super().convert(value, param, ctx))).expanduser()


PATH = _NamedPath(path_type=Path)
"""What commands take for a path: the ``click_type`` of the option or argument."""


def names(*known: str) -> Complete:
    """Return what completes one of some names."""
    return lambda incomplete: [name for name in known if name.startswith(incomplete)]


def knob(name: str, text: str, setting: str = "", complete: Sequence[str] = ()) -> Any:
    """Return an option whose default is the app's own, of the setting of its name or another."""
    default = str(default_run_config()[setting or name]) or "-"
    return typer.Option(
        f"--{name}",
        help=f"{text} [dim]\\[default: {default}][/dim]",
        autocompletion=names(*complete) if complete else None,
    )


def complete_setting(incomplete: str) -> list[str]:
    """Complete KEY=VALUE: of each setting its default, or all that it may be; or ``rule.KEY``."""
    if incomplete.startswith("rule."):
        own = {f"rule.{key}" for rule in CHOICES["strategy"] for key in declared_parameters(rule)}
        return [f"{key}=" for key in sorted(own) if key.startswith(incomplete)]
    return [text for text in _settings(incomplete) if text.startswith(incomplete)]


def _settings(incomplete: str) -> Iterator[str]:
    choices = {**CHOICES, "devices": ("none", *FLEETS)}
    for key, default in default_run_config().items():
        first = str(default).lower() if isinstance(default, bool) else str(default)
        others = choices.get(key, ()) if incomplete.startswith(f"{key}=") else ()
        if isinstance(default, bool) and incomplete.startswith(f"{key}="):
            others = ("true", "false")
        yield from (f"{key}={value}" for value in dict.fromkeys((first, *others)))
    yield "rule."


Clients = Annotated[
    int | None, typer.Option(help="Simulated clients. [dim]\\[default: 10][/dim]", min=1)
]
Rounds = Annotated[int | None, knob("rounds", "Rounds of training.", "num-rounds")]
NumSelected = Annotated[
    int | None, knob("num-selected", "Clients that send their update in a round.")
]
DataSet = Annotated[
    str | None,
    knob("dataset", f"{', '.join(CHOICES['dataset'])}, hf:NAME.", complete=CHOICES["dataset"]),
]
DataDir = Annotated[str | None, knob("data-dir", "Folder of the data set.")]
Model = Annotated[
    str | None,
    knob("model", f"{', '.join(CHOICES['model'])} or torchvision/NAME.", complete=CHOICES["model"]),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Any other setting, such as lr=0.05; or a parameter of the rule, such as rule.p=2 "
        "(pncs rules RULE lists them); or combine=..., what becomes of the updates (pncs rules "
        "lists those too).",
        autocompletion=complete_setting,
    ),
]
