"""The picture of a run, made from what it left on disk; matplotlib waits until a run is done."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from pncs_flower.plain_text import counted
from pncs_flower.protocol import client_order

from ..folders import SETTINGS
from ..run.folder import read_rounds, read_summary
from ..scores import ACCURACY, SCORES, score_name, score_of
from ..toml_file import read_toml
from . import figures
from .of_run import PICTURE
from .units import SECONDS, unit_for

# By the state of a client.
_STATES = (
    "free",
    "rests after its turn (cooling down)",
    "chosen",
    "chosen, but delivered nothing",
    "not there",
)
_COLOURS = (figures.PALE, "#b9d7ec", figures.COLOURS[0], figures.COLOURS[2], "white")
_BY_LABELS = figures.COLOURS[1]  # accuracies of clients
_FREE, _COOLING, _CHOSEN, _LOST, _AWAY = range(5)

_LABEL = 0.07  # of an accuracy: the height of a label
_STRIP = 1.3  # inches, beside the rounds
_MAX_LABELS = 30
_LABEL_STEPS = [m * 10**e for e in range(9) for m in (1, 2, 5)]


def draw_rounds(path: Path) -> Path:
    """Draw ``rounds.png``: the score over the rounds, and who was chosen, rested and is served."""
    rows, config, summary = read_rounds(path), read_toml(path / SETTINGS), read_summary(path)
    if not rows:
        raise ValueError(f"{path} has no rounds to draw")
    by_client = summary.get("accuracy-by-client", {})
    # On devices, some may never have been there.
    clients = sorted({*figures.clients_of(rows), *by_client}, key=client_order)
    height = min(8.0, max(1.6, 0.22 * len(clients)))
    figure = figures.new_figure(min(16.0, max(7.0, 2.5 + 0.22 * len(rows))), 3.0 + height)
    known = [client for client in clients if by_client.get(client) is not None]
    strips = 2 if known else 1
    width = figure.get_figwidth()
    figure.set_figwidth(width + strips * _STRIP)
    heights = [2.6, height]
    scores = _scores(rows, summary[f"initial-{score_name(rows[-1])}"])
    if rows[-1].get("clock") is not None:
        heights.insert(0, 2.6)
        figure.set_figheight(figure.get_figheight() + 2.6)
    last = len(heights) - 1
    grid = figure.add_gridspec(
        len(heights), 1 + strips, width_ratios=[width, *[_STRIP] * strips], height_ratios=heights
    )
    if last > 1:
        _draw_over_time(figure.add_subplot(grid[0, 0]), rows, scores)
    above = figure.add_subplot(grid[last - 1, 0])
    below = figure.add_subplot(grid[last, 0], sharex=above)
    above.tick_params(labelbottom=False)
    _draw_score(above, rows, scores)
    _draw_clients(below, rows, clients)
    beside = [figure.add_subplot(grid[last, 1 + n], sharey=below) for n in range(strips)]
    _draw_turns(beside[0], rows, clients)
    if known:
        _draw_strip(beside[1], [by_client.get(client) or 0.0 for client in clients], _BY_LABELS)
        beside[1].axvline(summary["mean-client-accuracy"], color="#555555", linewidth=1)
        beside[1].set(xlabel="accuracy by\nits labels", xlim=(0, 1))
        beside[1].set_xticks([0, 0.5, 1], ["0", "0.5", "1"])
    figure.suptitle(
        f"{config['strategy']} on {config['dataset']}: "
        f"{config['num-selected']} of {counted(len(clients), 'client')} per round"
    )
    seen = {_CHOSEN, _FREE}
    if any(row["cooling"] for row in rows):
        seen.add(_COOLING)
    if any(set(row["chosen"]) - set(row["delivered"]) for row in rows):
        seen.add(_LOST)
    if any(len(row["clients"]) < len(clients) for row in rows):
        seen.add(_AWAY)
    shown = [state for state in range(len(_STATES)) if state in seen]
    patches = [Patch(facecolor=_COLOURS[s], edgecolor="#999999", linewidth=0.5) for s in shown]
    figures.legend_below(figure, patches, [_STATES[state] for state in shown])
    return figures.save(figure, path / PICTURE)


def _scores(rows: Sequence[Mapping[str, Any]], initial: float | None) -> NDArray[np.float64]:
    """Return the score before training and after each round; NaN where it is not finite."""
    return np.array([initial, *(score_of(row) for row in rows)], dtype=np.float64)


def _show_scale(axes: Axes, name: str, scores: NDArray[np.float64]) -> None:
    lowest = 0.0 if name == ACCURACY else float(np.nanmin(scores, initial=0.0))
    axes.set(ylabel=f"test {SCORES[name]}", ylim=(lowest, 1))


def _draw_score(axes: Axes, rows: Sequence[Mapping[str, Any]], scores: NDArray[np.float64]) -> None:
    rounds = [0, *(row["round"] for row in rows)]
    worst: list[float] = [
        value for row in rows if (value := row.get("worst-tenth-accuracy")) is not None
    ]
    if len(worst) == len(rows):
        axes.plot(rounds[1:], worst, color=_BY_LABELS, linewidth=1.4)
        words = f"  {worst[-1]:.3f} worst tenth"
        # Not on the axis, nor on the label of all examples.
        place = max(min(worst[-1], np.nan_to_num(scores[-1], nan=1.0) - _LABEL), _LABEL / 2)
        text = axes.text(rounds[-1], place, words, va="center", fontsize=9)
        text.set_in_layout(False)  # there is room above the strips
    axes.plot(rounds, scores, color=figures.COLOURS[0], linewidth=1.8, marker="o", markersize=3)
    if np.isfinite(scores[-1]):
        axes.text(rounds[-1], scores[-1], f"  {scores[-1]:.3f}", va="center", fontsize=9)
    _show_scale(axes, score_name(rows[-1]), scores)
    figures.plain_axes(axes, "y")


def _draw_over_time(
    axes: Axes, rows: Sequence[Mapping[str, Any]], scores: NDArray[np.float64]
) -> None:
    """Draw the score over simulated time: it holds until the next round is over."""
    ends = np.cumsum([0.0, *(sum(row["simulated_seconds"].values()) for row in rows)])
    unit = unit_for(float(ends[-1]), SECONDS)
    colour = figures.COLOURS[0]
    axes.plot(ends / unit.size, scores, color=colour, linewidth=1.4, drawstyle="steps-post")
    axes.plot(ends / unit.size, scores, color=colour, linestyle="none", marker="o", markersize=3)
    _show_scale(axes, score_name(rows[-1]), scores)
    axes.set(xlabel=f"simulated time, {unit.name}", xlim=(0, ends[-1] / unit.size * 1.05 or 1))
    figures.plain_axes(axes, "both")


def _draw_turns(axes: Axes, rows: Sequence[Mapping[str, Any]], clients: Sequence[str]) -> None:
    """Draw how often each client was chosen, and how often of these its update came."""
    chosen = Counter(client for row in rows for client in row["chosen"])
    delivered = Counter(client for row in rows for client in row["delivered"])
    _draw_strip(axes, [chosen[client] for client in clients], _COLOURS[_LOST])
    _draw_strip(axes, [delivered[client] for client in clients], _COLOURS[_CHOSEN])
    axes.set(xlabel="times\nchosen", xlim=(0, max(chosen.values(), default=0) * 1.05 or 1))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=4))


def _draw_strip(axes: Axes, values: Sequence[float], colour: str) -> None:
    """Draw a bar for each client beside its row; as one area, for there may be thousands."""
    places = np.arange(len(values) + 1) - 0.5
    axes.fill_betweenx(places, [*values, 0.0], step="post", color=colour, linewidth=0)
    if len(values) <= _MAX_LABELS:
        for place in places[1:-1]:
            axes.axhline(place, color="white", linewidth=1)
    axes.tick_params(length=0, labelleft=False)
    axes.spines[["top", "right", "bottom"]].set_visible(False)
    axes.grid(axis="x", color="#dddddd", linewidth=0.7)
    axes.set_axisbelow(True)


def _draw_clients(axes: Axes, rows: Sequence[Mapping[str, Any]], clients: Sequence[str]) -> None:
    there = {row["round"]: set(row["clients"]) for row in rows}

    def state(client: str, row: Mapping[str, Any]) -> int:
        return _state(client, row) if client in there[row["round"]] else _AWAY

    figures.draw_states(axes, rows, clients, state, _COLOURS)
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
