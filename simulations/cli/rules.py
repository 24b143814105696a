"""`pncs rules`: which rules and combinations there are, and which parameters each has."""

import inspect
import re
from typing import TYPE_CHECKING, Annotated, get_type_hints

import typer
from rich.table import Table
from rich.text import Text

from ..choices import CHOICES, default_run_config, is_rule, nearest
from .console import out, said_plainly
from .options import ALL, names

if TYPE_CHECKING:
    from ..config import Config


def rules(
    name: Annotated[str | None, typer.Argument(autocompletion=names(*CHOICES["strategy"]))] = None,
) -> None:
    """Say which rules and combinations there are; or of one what it does and takes.

    A rule of yours is named by its import path, module:Rule.
    """
    with said_plainly(), out.status("Importing the rules"):
        from pncs_flower.strategies.combinations import COMBINATIONS
        from pncs_flower.strategies.rules import STRATEGIES

        from ..config import Config

        combination = COMBINATIONS.get(name or "")
        if name and not combination and not is_rule(name):
            if name == ALL:
                raise ValueError(
                    f"{ALL} is what comparisons and sweeps call uniform with all clients selected: "
                    "in pncs run, --strategy uniform with as many --num-selected as --clients"
                )
            known = sorted({*STRATEGIES, *COMBINATIONS})
            raise ValueError(f"there is no rule or combination {name!r}: {nearest(name, known)}")
        if name and is_rule(name):
            _show(Config.from_run_config({**default_run_config(), "strategy": name}))
        if combination:
            out.print(f"--set combine={name}\n{inspect.getdoc(combination)}", soft_wrap=True)
        if name is not None:
            return
    table = Table("--strategy", "who sends an update", box=None)
    for key, kind in sorted(STRATEGIES.items()):
        table.add_row(key, _first_line(kind))
    out.print(table)
    table = Table("--set combine=", "what becomes of the updates", box=None)
    names: dict[type, list[str]] = {}
    for key, of_key in COMBINATIONS.items():
        names.setdefault(of_key, []).append(key)
    for of_key, keys in names.items():
        table.add_row(", ".join(keys), _first_line(of_key))
    out.print()
    out.print(table)


def _first_line(kind: type) -> str:
    return (inspect.getdoc(kind) or "").partition("\n")[0]


def _show(config: "Config") -> None:
    """Print a rule's documentation and its parameters, with what they are in the app."""
    from pncs_flower.strategies.rule import parameters

    from ..run.strategy import build_strategy

    strategy = build_strategy(config)
    kind = type(strategy.rule)
    text = inspect.getdoc(kind if ":" in config.strategy else strategy) or ""
    if not text.startswith(f"{kind.__name__}("):  # which a dataclass has that says nothing
        out.print(text, soft_wrap=True)
    hints = get_type_hints(kind)
    table = Table("--set", "type", "default in the app", box=None)
    for key, field in parameters(kind).items():
        if key != "num_selected":
            hint = hints[field.name]
            shown = hint.__name__ if isinstance(hint, type) else re.sub(r"\w+\.", "", str(hint))
            value = getattr(strategy.rule, field.name)
            table.add_row(Text(f"rule.{key}"), Text(shown), Text(repr(value)))
    if table.row_count:
        out.print()
        out.print(table)
