"""What all pictures share: how they look, and how plots become a PNG file or part of a page."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any, Literal, NamedTuple

import numpy as np
from markupsafe import Markup
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba_array
from matplotlib.figure import Figure

from pncs_flower.files import replacing
from pncs_flower.protocol import client_order

from .svg import as_svg

COLOURS = ("#0072b2", "#e69f00", "#d55e00", "#cc79a7", "#009e73", "#56b4e9", "#7f6000", "#542788")
"""Okabe and Ito's, which differ in lightness too, with two darker ones; the reference's first."""

BLACK, GREY, PALE = "#000000", "#bbbbbb", "#f2f2f2"

_GRID = "#dddddd"
_LETTERS = 12  # of a title or a legend in an inch, if they are wide
_LONGEST_NAME = 50  # letters of a legend in one line
_IN_CSS = {
    BLACK: "currentColor",
    GREY: "var(--grey)",
    PALE: "var(--pale)",
    _GRID: "var(--grid)",
    **{colour: f"var(--line-{index})" for index, colour in enumerate(COLOURS)},
}


class Plot(NamedTuple):
    """A plot of a picture: what it is called, what one sees on it, and how it is drawn."""

    title: str
    words: str  # with the numbers, for whoever does not see it
    draw: Callable[[Axes], None]


class Picture(NamedTuple):
    """A plot on a page."""

    title: str
    svg: Markup


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure of so many inches, drawn without a display."""
    return Figure(figsize=(width, height), dpi=150, layout="constrained")


def draw_side_by_side(
    plots: Sequence[Plot],
    columns: int,
    inches: tuple[float, float],
    below: float = 0,
    sharey: bool = False,
) -> tuple[Figure, list[Axes]]:
    """Return a figure with plots in rows, each of so many inches, with some room below them."""
    columns = min(columns, len(plots))
    rows = -(-len(plots) // columns)
    figure = new_figure(max(6.4, inches[0] * columns), inches[1] * rows + below)
    axes = list(figure.subplots(rows, columns, squeeze=False, sharey=sharey).flat)
    for unused in axes[len(plots) :]:
        unused.set_visible(False)
    for plot, own in zip(plots, axes, strict=False):
        plot.draw(own)
        own.set_title(plain(fill(plot.title, int(_LETTERS * inches[0]))), fontsize=10)
    return figure, axes[: len(plots)]


def for_page(
    plots: Sequence[Plot],
    name: str,
    inches: tuple[float, float],
    ylim: tuple[float, float] | None = None,
) -> list[Picture]:
    """Return each plot by itself, of so many inches, so that a narrow page has them in a column."""
    pictures = []
    for number, plot in enumerate(plots):
        figure = new_figure(*inches)
        axes = figure.subplots()
        axes.set_facecolor("none")
        plot.draw(axes)
        axes.set(ylim=ylim or axes.get_ylim())
        svg = as_svg(figure, f"{name}-{number}", plot.words, _IN_CSS)
        pictures.append(Picture(plot.title, svg))
    return pictures


def save(figure: Figure, path: Path) -> Path:
    """Write a figure as PNG, whole or not at all."""
    with replacing(path) as file:
        figure.savefig(file, format="png")
    return path


def plain(text: str) -> str:
    """Keep matplotlib from reading a name as a formula."""
    return text.replace("$", r"\$")


def plain_axes(axes: Axes, grid: Literal["both", "y"] = "both") -> None:
    """Show a light grid, and no frame above and on the right."""
    axes.grid(axis=grid, color=_GRID, linewidth=0.7)
    axes.spines[["top", "right"]].set_visible(False)


def legend_below(figure: Figure, drawn: Sequence[Artist], names: Sequence[str]) -> None:
    """Say below all plots what is what; the figure grows where that takes more than two rows."""
    shown = [plain(fill(name, _LONGEST_NAME)) for name in names]
    for columns in (4, 3, 2, 1):
        parts = ["\n".join(part).splitlines() for part in np.array_split(shown, columns)]
        wide = sum(max(map(len, part), default=0) + 6 for part in parts)  # a line before each
        if wide <= _LETTERS * figure.get_figwidth():
            break
    more = max(map(len, parts)) - 2
    figure.set_figheight(figure.get_figheight() + 0.19 * max(0, more))
    figure.legend(
        drawn, shown, loc="outside lower center", ncols=columns, frameon=False, fontsize=9
    )


def clients_of(rounds: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return all clients of some rounds, in their order."""
    return sorted({client for row in rounds for client in row["clients"]}, key=client_order)


def draw_states(
    axes: Axes,
    rounds: Sequence[Mapping[str, Any]],
    clients: Sequence[str],
    state: Callable[[str, Mapping[str, Any]], int],
    colours: Sequence[str],
) -> None:
    """Draw the state of each client, a row, in each round, a column."""
    states = [[state(client, row) for row in rounds] for client in clients]
    left, right = rounds[0]["round"] - 0.5, rounds[-1]["round"] + 0.5
    axes.imshow(
        to_rgba_array(colours)[np.array(states, np.int64)],
        aspect="auto",
        interpolation="none",
        extent=(left, right, len(clients) - 0.5, -0.5),
    )
    axes.spines[:].set_visible(False)
