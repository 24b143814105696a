"""For a person: the lines of a single plot side by side, as a picture and as a table."""

from collections.abc import Collection, Sequence
from typing import Literal

import numpy as np
from rich.console import Group
from rich.filesize import decimal
from rich.table import Column, Table
from rich.text import Text

from pncs_flower.plain_text import counted

from ..sweep.cell import Run
from ..sweep.progress import ROUNDS, Reached, to_reach
from ..sweep.results import SweepResults
from ..sweep.statistics import mean_interval, percent, sortable
from .words_of_sweep import last_rounds

_BARS = "▁▂▃▄▅▆▇█"
_MOST_BARS = 40

PICTURE = "side-by-side.png"
"""Name of the picture in a sweep's folder."""


def side_by_side(results: SweepResults) -> Table:
    """Return a table with a row for each line: how good, how soon, how dear and how fair it is."""
    (by_line,) = results.panels.values()
    targets = results.about.report.targets
    competing = [line for line in by_line if line not in results.ceilings]
    target = _target([by_line[line] for line in competing], targets)
    if target is None:
        target = _target(by_line.values(), targets)
    seeds = max(len(runs) for runs in by_line.values())
    told = [f"{results.score}: mean of {last_rounds(results)}"]
    if seeds > 1:
        told.append(f"±: 95% interval over {counted(seeds, 'seed')}")
    if targets and target is None:
        told.append(f"no run reaches {percent(min(targets))}")
    told.append("bytes: of all clients and rounds; Gini: 0 if all clients have equal turns")
    table = Table(
        Column("rule", overflow="fold"),
        results.score,
        title=results.about.title,
        caption="; ".join(told),
    )
    if target is not None:
        table.add_column(f"rounds to {percent(target)}", justify="right")
    for heading in ("sent", "received", "Gini"):
        table.add_column(heading, justify="right")
    best = max(competing, key=lambda line: sortable(_converged(by_line[line])[0]), default=None)
    for line, runs in by_line.items():
        mean, half = _converged(runs)
        score = f"{mean:.3f}" if np.isfinite(mean) else "-"
        score += f" ± {half:.3f}" if np.isfinite(half) else ""
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
    finite = [value for mean in means.values() for value in mean[np.isfinite(mean)]]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    table = Table.grid("", "", padding=(0, 2))
    when = f"rounds 1 to {rounds}" if rounds > 1 else "round 1"
    title = f"{results.score}, {when}, from {low:.2f} to {high:.2f}"
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
    """Return the highest target that most runs of all lines reach, or of any, or else a run."""
    found = {t: [to_reach(runs, ROUNDS, t) for runs in lines] for t in sorted(targets)}
    medians = {t: np.isfinite([each.median for each in own]) for t, own in found.items()}
    for reached in (
        [t for t, by_most in medians.items() if by_most.all()],
        [t for t, by_most in medians.items() if by_most.any()],
        [t for t, own in found.items() if any(each.there for each in own)],
    ):
        if reached:
            return reached[-1]
    return None


def _when(reached: Reached) -> str:
    """Return the median, and how many runs get there where it is not all."""
    median = f"{reached.median:g}" if np.isfinite(reached.median) else "never"
    missing = 0 < reached.there < reached.seeds
    return f"{median} ({reached.there} of {reached.seeds})" if missing else median


def _mean_total(runs: Sequence[Run], direction: Literal["bytes_up", "bytes_down"]) -> int:
    """Return the bytes that all clients of a run have sent or received, as a mean of runs."""
    return round(float(np.mean([getattr(run, direction)[-1] for run in runs])))
