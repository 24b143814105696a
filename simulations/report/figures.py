"""The pictures of a report on a sweep."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import permutations
from pathlib import Path
from typing import Any, Literal

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba_array
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter
from numpy.typing import NDArray

from pncs_flower.files import replacing
from pncs_flower.protocol import client_order

from ..sweep.cell import Run
from ..sweep.progress import BYTES as TRAFFIC
from ..sweep.progress import ROUNDS, TIME, UPLOAD, Spent, known, steps
from ..sweep.results import SweepResults
from ..sweep.statistics import mean_interval
from .units import BYTES, SECONDS, Unit, unit_for

COLOURS = ("#0072b2", "#e69f00", "#d55e00", "#cc79a7", "#009e73", "#56b4e9", "#7f6000", "#542788")
"""Okabe and Ito's, which differ in lightness too, with two darker ones; the reference's first."""

BLACK, GREY, PALE = "#000000", "#bbbbbb", "#f2f2f2"

_DASHES = ("-", "--", "-.", ":")
_HEAT_MAPS = 4
_BANDS_FROM = 5  # with fewer seeds they are so wide that they hide the lines
_FAR_APART = 10  # how many times longer than another line one takes, for a logarithmic axis
_SPENT = {
    ROUNDS: "round",
    TIME: "simulated time, {}",
    TRAFFIC: "{} to and from clients",
    UPLOAD: "{} sent by clients",
}


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure of so many inches, drawn without a display."""
    return Figure(figsize=(width, height), dpi=150, layout="constrained")


def save(figure: Figure, path: Path) -> Path:
    """Write a figure as PNG, whole or not at all."""
    with replacing(path) as file:
        figure.savefig(file, format="png")
    return path


def plain_axes(axes: Axes, grid: Literal["both", "y"] = "both") -> None:
    """Show a light grid, and no frame above and on the right."""
    axes.grid(axis=grid, color="#dddddd", linewidth=0.7)
    axes.spines[["top", "right"]].set_visible(False)


def legend_below(figure: Figure, drawn: Sequence[Artist], names: Sequence[str]) -> None:
    """Say below all plots what is what."""
    figure.legend(drawn, names, loc="outside lower center", ncols=4, frameon=False, fontsize=9)


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
        interpolation="nearest",
        extent=(left, right, len(clients) - 0.5, -0.5),
    )
    axes.spines[:].set_visible(False)


def draw_curves(results: SweepResults, over: Spent, path: Path) -> Path | None:
    """Draw the score over what runs spend: a plot for each panel; None if that is not known."""
    panels = {
        panel: {line: runs for line, runs in by_line.items() if known(runs, over)}
        for panel, by_line in results.panels.items()
    }
    panels = {panel: by_line for panel, by_line in panels.items() if by_line}
    if not panels:
        path.unlink(missing_ok=True)  # of runs that are there no more
        return None
    everything = [runs for by_line in panels.values() for runs in by_line.values()]
    figure, plots = _plots(len(panels), 3, (4.2, 3.3), 0.9, sharey=True)
    lines = list(dict.fromkeys([results.reference, *results.lines]))
    drawn: dict[str, Line2D] = {}
    for axes, (panel, by_line) in zip(plots, panels.items(), strict=True):
        unit, log = _axis(over, by_line.values() if over == TIME else everything)
        for line, runs in by_line.items():
            ceiling = line in results.ceilings
            drawn[line] = _draw_line(axes, runs, over, lines.index(line), ceiling, unit.size)
        axes.set_title(_plain(results.label(panel)), fontsize=10)
        axes.set_xlabel(f"{_SPENT[over].format(unit.name)}{' (log scale)' if log else ''}")
        plain_axes(axes)
        if over == ROUNDS:
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        elif log:
            axes.set_xscale("log")
            axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.xaxis.set_major_formatter("{x:g}")
            axes.xaxis.set_minor_formatter(NullFormatter())
        else:
            axes.set_xlim(left=0)
    plots[0].set_ylabel(f"test {results.score}")
    shown = [line for line in lines if line in drawn]  # one may have no result
    legend_below(figure, [drawn[line] for line in shown], list(map(_plain, shown)))
    return save(figure, path)


def _axis(over: Spent, of_lines: Iterable[Sequence[Run]]) -> tuple[Unit, bool]:
    """Return the unit of a plot's axis, and whether it is logarithmic."""
    if over == ROUNDS:
        return Unit("", 1), False
    ends = [steps(runs, over)[0][-1] for runs in of_lines]
    far = over != TIME or max(ends) > _FAR_APART * min(ends)
    return unit_for(max(ends), SECONDS if over == TIME else BYTES), far


def _draw_line(
    axes: Axes, runs: Sequence[Run], over: Spent, index: int, ceiling: bool, size: float = 1
) -> Line2D:
    """Draw the mean of runs; what they have spent in a unit of that size."""
    if over == ROUNDS:
        x, scores = np.arange(1.0, len(runs[0].rounds) + 1), np.stack([r.scores for r in runs])
    else:
        x, scores = steps(runs, over)
        x = x / size
    how: Literal["default", "steps-post"] = "default" if over == ROUNDS else "steps-post"
    mean, half = mean_interval(scores)
    # Where the colours begin again the dashes are others; the ceiling is black.
    colour = BLACK if ceiling else COLOURS[index % len(COLOURS)]
    dashes = _DASHES[(index + index // len(COLOURS)) % len(_DASHES)]
    width = 2.4 if index == 0 else 1.4
    (drawn,) = axes.plot(x, mean, color=colour, linestyle=dashes, linewidth=width, drawstyle=how)
    if len(runs) >= _BANDS_FROM:
        low, high = np.clip((mean - half, mean + half), min(0, mean.min()), 1)
        step: Literal["post"] | None = None if over == ROUNDS else "post"
        axes.fill_between(x, low, high, color=colour, alpha=0.12, linewidth=0, step=step)
    return drawn


def draw_choices(results: SweepResults, path: Path) -> Path | None:
    """Draw who was chosen when, in the first panel with the first seed, or None if always all."""
    by_line = next(iter(results.panels.values()))
    runs = {line: some[0] for line, some in by_line.items() if line not in results.ceilings}
    if not runs:
        return None
    first = min(int(run.cell["seed"]) for run in runs.values())
    figure, plots = _plots(len(runs), 4, (3.1, 2.6))
    for axes, (line, run) in zip(plots, runs.items(), strict=True):
        draw_states(
            axes,
            run.rounds,
            clients_of(run.rounds),
            lambda c, row: c in row["chosen"],
            (PALE, COLOURS[0]),
        )
        seed = run.cell["seed"]
        shown = line if seed == first else f"{line}, seed {seed}"
        axes.set_title(_plain(shown), fontsize=10)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    figure.supxlabel("round", fontsize=10)
    figure.supylabel("client", fontsize=10)
    return save(figure, path)


def draw_similarities(results: SweepResults, path: Path) -> tuple[Path, Run] | None:
    """Draw how alike the gradients were in some rounds of a run, and which clients were chosen."""
    # The first of the reference, or else of any line, that kept its similarities.
    runs = sorted(results.runs, key=lambda run: run.cell["line"] != results.reference)
    run = next((run for run in runs if "similarity" in run.rounds[0]), None)
    if run is None:
        return None
    clients = clients_of(run.rounds)
    kept = [row for row in run.rounds if "similarity" in row]
    places = np.linspace(0, len(kept) - 1, min(_HEAT_MAPS, len(kept))).round().astype(int)
    rows = [kept[place] for place in places]
    matrices = [_matrix(row, clients) for row in rows]
    off_diagonal = ~np.eye(len(clients), dtype=bool)
    bound = max(1e-6, *(float(np.nanmax(np.abs(m[off_diagonal]), initial=0)) for m in matrices))
    figure, plots = _plots(len(rows), _HEAT_MAPS, (3.3, 3.2))
    for axes, row, matrix in zip(plots, rows, matrices, strict=True):
        np.fill_diagonal(matrix, np.nan)
        image = axes.imshow(matrix, cmap="RdBu_r", vmin=-bound, vmax=bound)
        chosen = [clients.index(client) for client in row["chosen"]]
        for i, j in permutations(chosen, 2):
            axes.add_patch(Rectangle((j - 0.5, i - 0.5), 1, 1, fill=False, linewidth=1.6))
        axes.set_title(f"round {row['round']}", fontsize=10)
        axes.set_facecolor(GREY)  # darker than the colour of no similarity
        axes.set_xticks(range(len(clients)), clients, fontsize=7)
        axes.set_yticks(range(len(clients)), clients, fontsize=7)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
    figure.colorbar(image, ax=list(figure.axes), label="similarity", shrink=0.8)
    return save(figure, path), run


def _plots(
    count: int, columns: int, inches: tuple[float, float], below: float = 0, sharey: bool = False
) -> tuple[Figure, list[Axes]]:
    """Return so many plots in rows, each of so many inches, with some room below them."""
    columns = min(columns, count)
    rows = -(-count // columns)
    figure = new_figure(max(6.4, inches[0] * columns), inches[1] * rows + below)
    axes = list(figure.subplots(rows, columns, squeeze=False, sharey=sharey).flat)
    for unused in axes[count:]:
        unused.set_visible(False)
    return figure, axes[:count]


def _matrix(row: Mapping[str, Any], clients: Sequence[str]) -> NDArray[np.float64]:
    """Return the similarities of a round among all clients, NaN where there are none."""
    matrix = np.full((len(clients), len(clients)), np.nan)
    places = [clients.index(client) for client in row["similarity"]["clients"]]
    matrix[np.ix_(places, places)] = row["similarity"]["values"]
    return matrix


def _plain(text: str) -> str:
    """Keep matplotlib from reading a name as a formula."""
    return text.replace("$", r"\$")
