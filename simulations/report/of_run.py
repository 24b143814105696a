"""For a person: a line per round, a table and a picture, all made from what a run left on disk."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from rich.filesize import decimal
from rich.table import Table

from pncs_flower.plain_text import first_of

from ..run.early_stopping import stopped_after
from ..run.folder import read_rounds, read_summary
from ..run.settings import SETTINGS
from ..toml_file import read_toml
from . import figures

PICTURE = "rounds.png"
"""Name of the picture in a run's folder."""

# By the state of a client.
_STATES = ("free", "cooling down", "chosen", "chosen, but delivered nothing")
_COLOURS = (figures.PALE, "#b9d7ec", figures.COLOURS[0], figures.COLOURS[2])
_FREE, _COOLING, _CHOSEN, _LOST = range(4)

_MAX_ROWS = 12
_MAX_LABELS = 30
_SHOWN = 4  # clients in a row of the table
_LABEL_STEPS = [m * 10**e for e in range(9) for m in (1, 2, 5)]


def round_line(row: Mapping[str, Any], num_rounds: int) -> str:
    """Return one line about a round, and one more for everything out of the ordinary."""
    parts = [
        f"round {row['round']:>{len(str(num_rounds))}}/{num_rounds}",
        f"accuracy {_number(row['accuracy'], '.3f')}",
        f"loss {_number(row['loss'], '.3f')}",
        f"chosen {', '.join(row['chosen']) or 'nobody'}",
    ]
    if row["mean_similarity"] is not None:
        parts.append(f"similarity {row['mean_similarity']:+.3f}")
    if (left := _left_over(row)) is not None:
        parts.append(f"left over {left:.0%}")
    parts.append(f"{sum(row['seconds'].values()):.2f} s")
    lines = ["  ".join(parts)]
    lines += [f"  not used: client {key}: {why}" for key, why in row["rejected"].items()]
    lines += [f"  note: {note}" for note in row["notes"]]
    return "\n".join(lines)


def final_table(path: Path) -> Table:
    """Return the table of a finished run's folder: its result and its last rounds."""
    rows, summary = read_rounds(path), read_summary(path)
    early = ", stopped early" if stopped_after(rows) else ""
    table = Table(
        title=f"Accuracy {_number(summary['initial-accuracy'], '.3f')} before training, "
        f"{_number(summary['final-accuracy'], '.3f')} after {summary['rounds']} rounds{early} "
        f"(best {_number(summary['best-accuracy'], '.3f')})",
        caption=f"{summary['seconds']:.1f} s; clients sent {decimal(summary['bytes-up'])} "
        f"and received {decimal(summary['bytes-down'])}",
    )
    fitted = any(_left_over(row) is not None for row in rows)
    measure = "left over" if fitted else "similarity"
    for heading in ("round", "accuracy", "loss", "chosen", "cooling down", measure, "seconds"):
        names = heading in ("chosen", "cooling down")
        table.add_column(heading, justify="left" if names else "right")
    for row in rows[-_MAX_ROWS:]:
        table.add_row(
            str(row["round"]),
            _number(row["accuracy"], ".3f"),
            _number(row["loss"], ".3f"),
            first_of(row["chosen"], _SHOWN),
            first_of(row["cooling"], _SHOWN),
            _number(_left_over(row), ".0%") if fitted else _number(row["mean_similarity"], "+.3f"),
            f"{sum(row['seconds'].values()):.2f}",
        )
    return table


def _left_over(row: Mapping[str, Any]) -> float | None:
    """Return the part of the mean of all that a round has not applied, where it is fitted."""
    left: float | None = row.get("combined", {}).get("residual")
    return left


def draw_rounds(path: Path) -> Path:
    """Draw ``rounds.png``: accuracy over the rounds, and below it who was chosen and who rested."""
    rows, config = read_rounds(path), read_toml(path / SETTINGS)
    if not rows:
        raise ValueError(f"{path} has no rounds to draw")
    clients = figures.clients_of(rows)
    height = min(8.0, max(1.6, 0.22 * len(clients)))
    figure = figures.new_figure(min(16.0, max(7.0, 2.5 + 0.22 * len(rows))), 3.0 + height)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[2.6, height])
    _draw_accuracy(above, rows, read_summary(path)["initial-accuracy"])
    _draw_clients(below, rows, clients)
    figure.suptitle(
        f"{config['strategy']} on {config['dataset']}: "
        f"{config['num-selected']} of {len(clients)} clients per round"
    )
    lost = any(set(row["chosen"]) - set(row["delivered"]) for row in rows)
    shown = [state for state in range(len(_STATES)) if lost or state != _LOST]
    patches = [Patch(facecolor=_COLOURS[s], edgecolor="#999999", linewidth=0.5) for s in shown]
    figures.legend_below(figure, patches, [_STATES[state] for state in shown])
    return figures.save(figure, path / PICTURE)


def _draw_accuracy(axes: Axes, rows: Sequence[Mapping[str, Any]], initial: float) -> None:
    rounds = [0, *(row["round"] for row in rows)]
    accuracy = [initial, *(row["accuracy"] for row in rows)]
    axes.plot(rounds, accuracy, color=figures.COLOURS[0], linewidth=1.8, marker="o", markersize=3)
    axes.text(rounds[-1], accuracy[-1], f"  {accuracy[-1]:.3f}", va="center", fontsize=9)
    axes.set(ylabel="test accuracy", ylim=(0, 1))
    figures.plain_axes(axes, "y")


def _draw_clients(axes: Axes, rows: Sequence[Mapping[str, Any]], clients: Sequence[str]) -> None:
    figures.draw_states(axes, rows, _state, _COLOURS)
    if len(rows) <= 2 * _MAX_LABELS and len(clients) <= _MAX_LABELS:
        for row in rows[1:]:
            axes.axvline(row["round"] - 0.5, color="white", linewidth=1)
        for index in range(1, len(clients)):
            axes.axhline(index - 0.5, color="white", linewidth=1)
    step = next(n for n in _LABEL_STEPS if n * _MAX_LABELS >= len(clients))
    axes.set_yticks(range(0, len(clients), step), clients[::step])
    axes.set(xlabel="round", ylabel="client", xlim=(-0.5, rows[-1]["round"] + 0.5))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    axes.tick_params(length=0)


def _state(client: str, row: Mapping[str, Any]) -> int:
    if client in row["chosen"]:
        return _CHOSEN if client in row["delivered"] else _LOST
    return _COOLING if client in row["cooling"] else _FREE


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
