"""The pictures of a report on a sweep: files as PNG, and each of their plots for the page."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import permutations
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import PathPatch
from matplotlib.path import Path as MatplotlibPath
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter
from numpy.typing import NDArray

from pncs_flower.plain_text import counted, first_of

from ..config import parse_rule
from ..sweep.cell import Run
from ..sweep.progress import BYTES as TRAFFIC
from ..sweep.progress import ROUNDS, TIME, UPLOAD, Spent, Vector, known, steps
from ..sweep.results import SweepResults
from ..sweep.statistics import mean_interval, sortable
from .figures import (
    BLACK,
    COLOURS,
    GREY,
    PALE,
    Picture,
    Plot,
    clients_of,
    draw_side_by_side,
    draw_states,
    for_page,
    legend_below,
    plain_axes,
    save,
)
from .svg import band_id, line_id
from .units import BYTES, SECONDS, Unit, in_unit, unit_for

# A dash by its name in matplotlib, and in SVG.
_DASHES = {"-": "none", "--": "7 3", "-.": "12 3 2 3", ":": "2 3"}
_ALONE = {1: (5.8, 3.2), 2: (5.0, 3.3)}  # inches of a curve on the page, by how many there are
_ONE_OF_MANY = (4.0, 3.0)
_CHOSEN = "#2589c4"  # part of an image, it stands out on a light page and on a dark one
_HEAT_MAPS = 4
_MOST_NAMES = 20  # clients of a heat map whose names stand beside it
_MOST_STEPS = 100  # of a line over time or bytes: more are finer than what is drawn
_FLATTEST = 0.05  # of scores that a plot shows: closer ones would look as if far apart
_FAR_APART = 10  # how many times longer than another line one takes, for a logarithmic axis
_SPENT = {
    ROUNDS: "round",
    TIME: "simulated time, {}",
    TRAFFIC: "{} to and from clients",
    UPLOAD: "{} sent by clients",
}

BANDS_FROM = 5
"""From how many seeds on intervals are drawn: of fewer they hide the lines."""


class Similarities(NamedTuple):
    """Heat maps of some rounds of a run, and the similarity at the end of their colours."""

    pictures: list[Picture]
    run: Run
    compared: str  # what the summaries were of: updates or gradients
    bound: float


class Look(NamedTuple):
    """How the line of a rule looks in all pictures."""

    number: int
    colour: str
    dash: str  # matplotlib's name
    width: float  # points

    @property
    def in_css(self) -> str:
        """The colour, on a page."""
        return "currentColor" if self.colour == BLACK else f"var(--line-{self.number % 8})"

    @property
    def dashes(self) -> str:
        """The dash, in SVG."""
        return _DASHES[self.dash]


def looks_of(results: SweepResults) -> dict[str, Look]:
    """Return how each line looks that has a result, and the reference."""
    lines = dict.fromkeys([results.reference, *results.lines])
    return {line: _look(index, line in results.ceilings) for index, line in enumerate(lines)}


def draw_curves(results: SweepResults, over: Spent, path: Path) -> list[Picture]:
    """Draw the score over what runs spend: a plot for each panel; none if that is not known."""
    drawn: dict[str, Line2D] = {}
    plots = _plots(results, over, drawn)
    if not plots:
        path.unlink(missing_ok=True)  # of runs that are there no more
        return []
    axes = _save_curves(results, plots, drawn, path)
    inches = _ALONE.get(len(plots), _ONE_OF_MANY)
    return for_page(plots, path.stem, inches, axes.get_ylim())


def draw_both(results: SweepResults, path: Path) -> Path:
    """Draw the score over rounds and over bytes beside each other, of a sweep with one panel."""
    drawn: dict[str, Line2D] = {}
    plots = [each for over in (ROUNDS, TRAFFIC) for each in _plots(results, over, drawn)]
    _save_curves(results, plots, drawn, path)
    return path


def _save_curves(
    results: SweepResults, plots: Sequence[Plot], drawn: Mapping[str, Line2D], path: Path
) -> Axes:
    """Write plots side by side as PNG, and return the first; all have its scale of scores."""
    figure, axes = draw_side_by_side(plots, 3, (4.2, 3.3), 0.9, sharey=True)
    axes[0].set(ylabel=f"test {results.score}", ylim=_scale(axes))
    shown = [line for line in looks_of(results) if line in drawn]  # one may have no result
    legend_below(figure, [drawn[line] for line in shown], shown)
    save(figure, path)
    return axes[0]


def _scale(axes: Sequence[Axes]) -> tuple[float, float]:
    """Return the lowest and the highest score of plots that share a scale: 0 and 1 of none."""
    scores = np.concatenate([np.asarray(line.get_ydata()) for a in axes for line in a.lines])
    if not np.isfinite(scores).any():
        return 0.0, 1.0
    low, high = axes[0].get_ylim()
    more = max(0.0, _FLATTEST - (high - low)) / 2
    return low - more, high + more


def _plots(results: SweepResults, over: Spent, drawn: dict[str, Line2D]) -> list[Plot]:
    """Return a plot for each panel; ``drawn`` takes what one draws for each line."""
    panels = {
        panel: {line: runs for line, runs in by_line.items() if known(runs, over)}
        for panel, by_line in results.panels.items()
    }
    panels = {panel: by_line for panel, by_line in panels.items() if by_line}
    everything = [runs for by_line in panels.values() for runs in by_line.values()]
    looks = looks_of(results)

    def plot_of(panel: str, by_line: Mapping[str, Sequence[Run]]) -> Plot:
        unit, log = _axis(over, by_line.values() if over == TIME else everything)
        what = _SPENT[over].format(unit.name)

        def draw(axes: Axes) -> None:
            for line, runs in by_line.items():
                drawn[line] = _draw_line(axes, runs, over, looks[line], unit.size)
            axes.set_xlabel(f"{what}{' (log scale)' if log else ''}")
            plain_axes(axes)
            if over == ROUNDS:
                axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
            elif log:
                axes.set_xscale("log")
                axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
                axes.xaxis.set_major_formatter("{x:g}")
                axes.xaxis.set_minor_formatter(NullFormatter())
            else:
                axes.set_xlim(left=0)

        title = results.label(panel)
        about = f"Test {results.score} over {'rounds' if over == ROUNDS else what}"
        about += f", {title}" if title else ""
        return Plot(title, f"{about}. {_ends_in_words(by_line, over, unit)}", draw)

    return [plot_of(panel, by_line) for panel, by_line in panels.items()]


def _look(index: int, ceiling: bool) -> Look:
    # Where the colours begin again the dashes are others; the ceiling is black.
    colour = BLACK if ceiling else COLOURS[index % len(COLOURS)]
    dash = list(_DASHES)[(index + index // len(COLOURS)) % len(_DASHES)]
    return Look(index, colour, dash, 2.4 if index == 0 else 1.4)


def _axis(over: Spent, of_lines: Iterable[Sequence[Run]]) -> tuple[Unit, bool]:
    """Return the unit of a plot's axis, and whether it is logarithmic."""
    if over == ROUNDS:
        return Unit("", 1), False
    ends = [steps(runs, over)[0][-1] for runs in of_lines]
    far = over != TIME or max(ends) > _FAR_APART * min(ends)
    return unit_for(max(ends), SECONDS if over == TIME else BYTES), far


def _course(runs: Sequence[Run], over: Spent) -> tuple[Vector, Vector]:
    """Return what was spent, shape (n,), and the scores by then, shape (runs, n)."""
    if over == ROUNDS:
        return np.arange(1.0, len(runs[0].rounds) + 1), np.stack([r.scores for r in runs])
    x, scores = steps(runs, over)
    if len(x) > _MOST_STEPS:
        kept = np.linspace(0, len(x) - 1, _MOST_STEPS).round().astype(int)
        x, scores = x[kept], scores[:, kept]
    return x, scores


def _draw_line(axes: Axes, runs: Sequence[Run], over: Spent, look: Look, size: float = 1) -> Line2D:
    """Draw the mean of runs; what they have spent in a unit of that size."""
    x, scores = _course(runs, over)
    how: Literal["default", "steps-post"] = "default" if over == ROUNDS else "steps-post"
    mean, half = mean_interval(scores)
    (drawn,) = axes.plot(
        x / size,
        mean,
        color=look.colour,
        linestyle=look.dash,
        linewidth=look.width,
        drawstyle=how,
        marker="o" if np.isfinite(mean).sum() == 1 else "",  # a line of one point is not seen
        gid=line_id(look.number),
    )
    # Where scores are not finite, it was trained all the same.
    axes.update_datalim(np.column_stack([x / size, np.zeros_like(x)]), updatey=False)
    if len(runs) >= BANDS_FROM:
        low, high = np.clip((mean - half, mean + half), min(0, mean.min()), 1)
        step: Literal["post"] | None = None if over == ROUNDS else "post"
        band = axes.fill_between(
            x / size, low, high, color=look.colour, alpha=0.12, linewidth=0, step=step
        )
        band.set_gid(band_id(look.number))
    return drawn


def _ends_in_words(by_line: Mapping[str, Sequence[Run]], over: Spent, unit: Unit) -> str:
    """Return where each line ends, the highest first."""
    ends = []
    for line, runs in by_line.items():
        x, scores = _course(runs, over)
        ends.append((float(scores[:, -1].mean()), line, float(x[-1])))
    ends.sort(key=lambda end: -sortable(end[0]))
    if over == ROUNDS:
        last = f"In the last round, {ends[0][2]:.0f}: "
        return last + ", ".join(f"{line} {_in_words(score)}" for score, line, _ in ends) + "."
    shown = (f"{line} {_in_words(y)} at {in_unit(x, unit)} {unit.name}" for y, line, x in ends)
    return f"Where the lines end: {', '.join(shown)}."


def _in_words(score: float) -> str:
    return f"{score:.3f}" if np.isfinite(score) else "not finite"


def draw_choices(results: SweepResults, path: Path) -> list[Picture]:
    """Draw who was chosen when, in the first panel with the first seed; none if always all."""
    by_line = next(iter(results.panels.values()))
    runs = {line: some[0] for line, some in by_line.items() if line not in results.ceilings}
    if not runs:
        return []
    first = min(int(run.cell["seed"]) for run in runs.values())

    def plot_of(line: str, run: Run) -> Plot:
        def draw(axes: Axes) -> None:
            draw_states(
                axes,
                run.rounds,
                clients_of(run.rounds),
                lambda c, row: c in row["chosen"],
                ("none", _CHOSEN),
            )
            axes.set_facecolor(PALE)
            axes.xaxis.set_major_locator(MaxNLocator(5, integer=True, min_n_ticks=1))
            axes.yaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))

        seed = run.cell["seed"]
        title = line if seed == first else f"{line}, seed {seed}"
        return Plot(title, f"{title}: {_turns_in_words(run)}", draw)

    plots = [plot_of(line, run) for line, run in runs.items()]
    figure, _ = draw_side_by_side(plots, 4, (3.1, 2.6))
    figure.supxlabel("round", fontsize=10)
    figure.supylabel("client", fontsize=10)
    save(figure, path)
    return for_page(plots, path.stem, (2.6, 2.0))


def _turns_in_words(run: Run) -> str:
    """Return how often clients were chosen."""
    chosen = Counter(client for row in run.rounds for client in row["chosen"])
    clients = clients_of(run.rounds)
    turns = [chosen[client] for client in clients]
    never = [client for client in clients if not chosen[client]]
    words = f"in {counted(len(run.rounds), 'round')} "
    if min(turns) == max(turns):
        return f"{words}each client was chosen {counted(max(turns), 'time')}."
    words += f"clients were chosen {min(turns)} to {counted(max(turns), 'time')}"
    return words + (f"; never: {first_of(never, 10)}." if never else ".")


def draw_similarities(results: SweepResults, path: Path) -> Similarities | None:
    """Draw how alike clients were in some rounds of a run, and which of them were chosen."""
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
    for matrix in matrices:
        np.fill_diagonal(matrix, np.nan)

    def plot_of(row: Mapping[str, Any], matrix: NDArray[np.float64]) -> Plot:
        def draw(axes: Axes) -> None:
            axes.imshow(matrix, cmap="RdBu_r", vmin=-bound, vmax=bound, interpolation="none")
            chosen = [clients.index(client) for client in row["chosen"]]
            frames = [
                MatplotlibPath([(x, y), (x + 1, y), (x + 1, y + 1), (x, y + 1), (x, y)])
                for x, y in permutations([place - 0.5 for place in chosen], 2)
            ]
            if frames:
                frame = MatplotlibPath.make_compound_path(*frames)
                axes.add_patch(PathPatch(frame, fill=False, linewidth=1.6))
            axes.set_facecolor(GREY)  # darker than the colour of no similarity
            if len(clients) <= _MOST_NAMES:
                axes.set_xticks(range(len(clients)), clients, fontsize=7)
                axes.set_yticks(range(len(clients)), clients, fontsize=7)
            axes.tick_params(length=0)
            axes.spines[:].set_visible(False)

        title = f"round {row['round']}"
        return Plot(title, _alike_in_words(row, matrix, clients), draw)

    plots = [plot_of(row, matrix) for row, matrix in zip(rows, matrices, strict=True)]
    figure, axes = draw_side_by_side(plots, _HEAT_MAPS, (3.3, 3.2))
    figure.colorbar(axes[-1].images[0], ax=list(figure.axes), label="similarity", shrink=0.8)
    save(figure, path)
    # The rules of the library that compare clients all do so by their updates unless told.
    compared = f"{parse_rule(run.cell['settings']['rule']).get('summary', 'update')}s"
    return Similarities(for_page(plots, path.stem, (2.6, 2.6)), run, compared, bound)


def _alike_in_words(
    row: Mapping[str, Any], matrix: NDArray[np.float64], clients: Sequence[str]
) -> str:
    """Return how alike the pairs of a round were, and those of the chosen."""
    known_pairs = matrix[np.isfinite(matrix)]
    words = f"Round {row['round']}: "
    if not known_pairs.size:
        return f"{words}no two clients sent a summary."
    words += f"similarities from {known_pairs.min():+.2f} to {known_pairs.max():+.2f}, "
    words += f"in the mean {known_pairs.mean():+.2f}"
    chosen = [clients.index(client) for client in row["chosen"]]
    own = matrix[np.ix_(chosen, chosen)]
    if np.isfinite(own).any():
        names = first_of(row["chosen"], 10)
        words += f"; among the chosen, {names}, in the mean {np.nanmean(own):+.2f}"
    return f"{words}."


def _matrix(row: Mapping[str, Any], clients: Sequence[str]) -> NDArray[np.float64]:
    """Return the similarities of a round among all clients, NaN where there are none."""
    matrix = np.full((len(clients), len(clients)), np.nan)
    places = [clients.index(client) for client in row["similarity"]["clients"]]
    matrix[np.ix_(places, places)] = row["similarity"]["values"]
    return matrix
