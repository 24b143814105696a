"""The learning rate of each rule in each setting, chosen on validation examples."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..config import Scalar
from .cell import Cell
from .statistics import LAST
from .sweep import Sweep, short

__all__ = ["FIRST_SEED", "Tuned", "choose_rates", "tuning_cells", "with_rates"]

FIRST_SEED = 1000
"""Seeds of tuning start here: its partitions and initial weights are none of the sweep's."""


@dataclass(frozen=True)
class Tuned:
    """What was chosen for the runs that share a panel and a line.

    ``accuracies`` has for each rate the mean validation accuracy of the last rounds and of all
    seeds, where a run that failed, as training that diverges does, counts as 0.
    """

    panel: str
    line: str
    lr: float
    accuracies: Mapping[str, float]


def tuning_cells(sweep: Sweep) -> list[Cell]:
    """Return the runs that are judged by validation examples; none if nothing is to be tuned."""
    if sweep.tune is None:
        return []
    cells = []
    for cell in replace(sweep, seeds=sweep.tune.seeds).cells():
        seed = FIRST_SEED + cell.seed
        for rate in sweep.tune.lr:
            own: dict[str, Scalar] = {"seed": seed, "evaluate-on": "validation", "lr": rate}
            cells.append(replace(cell, seed=seed, settings={**cell.settings, **own}))
    return cells


def choose_rates(outcomes: Iterable[tuple[Cell, Sequence[Mapping[str, Any]]]]) -> list[Tuned]:
    """Return the best rate of each panel and line, the smallest among equals.

    The runs of `tuning_cells` come with their rounds, none if one failed.
    """
    found: dict[tuple[str, str], dict[float, list[list[float]]]] = {}
    for cell, rounds in outcomes:
        by_rate = found.setdefault((cell.panel, cell.line), {})
        last = [row["accuracy"] for row in rounds[-LAST:]]
        by_rate.setdefault(float(cell.settings["lr"]), []).append(last)
    chosen = []
    for line, by_rate in found.items():
        if not any(last for runs in by_rate.values() for last in runs):
            raise ValueError(
                f"{', '.join(line)}: no run with any of the learning rates came to an end"
            )
        means = {
            rate: sum(sum(last) / len(last) if last else 0.0 for last in runs) / len(runs)
            for rate, runs in sorted(by_rate.items())
        }
        best = max(means, key=means.__getitem__)  # the first of equals, so the smallest
        chosen.append(Tuned(*line, best, {short(rate): mean for rate, mean in means.items()}))
    return chosen


def with_rates(cells: Sequence[Cell], tuned: Sequence[Tuned]) -> list[Cell]:
    """Return the cells, each with the learning rate of its panel and line, if one was chosen."""
    rates = {(each.panel, each.line): {"lr": each.lr} for each in tuned}
    return [
        replace(cell, settings={**cell.settings, **rates.get((cell.panel, cell.line), {})})
        for cell in cells
    ]
