"""For a person: the lines of a single plot side by side, as a picture and as a table."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from matplotlib.image import imread, imsave
from rich.console import Group
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from pncs_flower.files import replacing
from pncs_flower.plain_text import counted

from ..run.early_stopping import LAST
from ..sweep.cell import Run
from ..sweep.progress import ROUNDS, Reached, to_reach
from ..sweep.results import SweepResults
from ..sweep.statistics import mean_interval, percent

_BARS = "▁▂▃▄▅▆▇█"
_MOST_BARS = 40

PICTURE = "side-by-side.png"
"""Name of the picture in a sweep's folder."""


def join_pictures(folder: Path) -> Path:
    """Put the pictures of a report over rounds and over bytes beside each other, in one file."""
    both = [imread(folder / f"{name}.png") for name in ("rounds", "bytes")]
    with replacing(folder / PICTURE) as file:
        imsave(file, np.hstack(both), format="png")
    return folder / PICTURE


def side_by_side(results: SweepResults) -> Table:
    """Return a table with a row for each line: how good, how soon, how dear and how fair it is."""
    (by_line,) = results.panels.values()
    target = _target(by_line.values(), results.about.report.targets)
    seeds = max(len(runs) for runs in by_line.values())
    told = [f"{results.score}: mean of the last {LAST} rounds"]
    if seeds > 1:
        told.append(f"±: 95% interval over {counted(seeds, 'seed')}")
    told.append("bytes: of all clients and rounds; Gini: 0 if all clients have equal turns")
    table = Table("rule", results.score, title=results.about.title, caption="; ".join(told))
    if target is not None:
        table.add_column(f"rounds to {percent(target)}", justify="right")
    for heading in ("sent", "received", "Gini"):
        table.add_column(heading, justify="right")
    competing = [line for line in by_line if line not in results.ceilings]
    best = max(competing, key=lambda line: _converged(by_line[line])[0], default=None)
    for line, runs in by_line.items():
        mean, half = _converged(runs)
        score = f"{mean:.3f}" + (f" ± {half:.3f}" if np.isfinite(half) else "")
        row = [Text(line), Text(score, "bold" if line == best else "")]
        if target is not None:
            row.append(Text(_when(to_reach(runs, ROUNDS, target))))
        totals = _mean_total(runs, "bytes_up"), _mean_total(runs, "bytes_down")
        row += [Text(decimal(total)) for total in totals]
        gini = [run.summary["gini"] for run in runs if "gini" in run.summary]
        row.append(Text(f"{np.mean(gini):.2f}" if gini else "-"))
        table.add_row(*row)
    return table


def courses(results: SweepResults) -> Group:
    """Return the mean score of each line over the rounds, drawn with characters."""
    (by_line,) = results.panels.values()
    means = {line: np.mean([run.scores for run in runs], axis=0) for line, runs in by_line.items()}
    rounds = len(next(iter(means.values())))
    shown = np.linspace(0, rounds - 1, min(rounds, _MOST_BARS)).round().astype(int)
    low, high = float(np.nanmin([*means.values()])), float(np.nanmax([*means.values()]))
    table = Table.grid("", "", padding=(0, 2))
    title = f"{results.score}, rounds 1 to {rounds}, from {low:.2f} to {high:.2f}"
    for line, mean in means.items():
        heights = (mean[shown] - low) / max(high - low, 1e-9) * (len(_BARS) - 1)
        # A score that is not finite leaves a gap.
        bars = "".join(" " if np.isnan(h) else _BARS[int(h)] for h in heights.round())
        table.add_row(Text(line), Text(bars, no_wrap=True, overflow="crop"))
    return Group(Text(title), table)


def _converged(runs: Sequence[Run]) -> tuple[float, float]:
    """Return the mean of runs over their last rounds, and half of its interval."""
    mean, half = mean_interval(np.array([run.converged for run in runs]))
    return float(mean), float(half)


def _target(lines: Collection[Sequence[Run]], targets: Sequence[float]) -> float | None:
    """Return the highest target that most runs of all lines reach, or of any; else the lowest."""
    medians = {t: [to_reach(runs, ROUNDS, t).median for runs in lines] for t in sorted(targets)}
    for enough in (all, any):
        reached = [t for t, found in medians.items() if enough(np.isfinite(found))]
        if reached:
            return reached[-1]
    return min(targets, default=None)


def _when(reached: Reached) -> str:
    """Return the median, and how many runs get there where it is not all."""
    median = f"{reached.median:g}" if np.isfinite(reached.median) else "never"
    missing = 0 < reached.there < reached.seeds
    return f"{median} ({reached.there} of {reached.seeds})" if missing else median


def _mean_total(runs: Sequence[Run], direction: Literal["bytes_up", "bytes_down"]) -> int:
    """Return the bytes that all clients of a run have sent or received, as a mean of runs."""
    return round(float(np.mean([getattr(run, direction)[-1] for run in runs])))
