"""The learning rate of each rule in each setting, chosen on validation examples."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..config import Scalar
from .statistics import LAST
from .sweep import Cell, Sweep, short

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
    return [
        replace(
            cell,
            seed=FIRST_SEED + cell.seed,
            settings={
                **cell.settings,
                "seed": FIRST_SEED + cell.seed,
                "evaluate-on": "validation",
                "lr": rate,
            },
        )
        for cell in replace(sweep, seeds=sweep.tune.seeds).cells()
        for rate in sweep.tune.lr
    ]


def choose_rates(outcomes: Sequence[tuple[Cell, Sequence[Mapping[str, Any]]]]) -> list[Tuned]:
    """Return the best rate of each panel and line, the smallest among equals.

    The runs of `tuning_cells` come with their rounds, none if one failed.
    """
    found: dict[tuple[str, str], dict[Scalar, list[float]]] = {}
    for cell, rounds in outcomes:
        last = [row["accuracy"] for row in rounds[-LAST:]]
        by_rate = found.setdefault((cell.panel, cell.line), {})
        by_rate.setdefault(cell.settings["lr"], []).append(
            sum(last) / len(last) if last else float("nan")
        )
    chosen = []
    for (panel, line), by_rate in found.items():
        if all(value != value for values in by_rate.values() for value in values):
            raise ValueError(
                f"{panel}, {line}: no run with any of the learning rates came to an end"
            )
        means = {
            float(rate): sum(value for value in values if value == value) / len(values)
            for rate, values in sorted(by_rate.items())
        }
        best = max(means, key=means.__getitem__)  # the first of equals, so the smallest
        chosen.append(Tuned(panel, line, best, {short(rate): m for rate, m in means.items()}))
    return chosen


def with_rates(cells: Sequence[Cell], tuned: Sequence[Tuned]) -> list[Cell]:
    """Return the cells, each with the learning rate of its panel and line."""
    rates = {(each.panel, each.line): each.lr for each in tuned}
    return [
        replace(cell, settings={**cell.settings, "lr": rates[cell.panel, cell.line]})
        if (cell.panel, cell.line) in rates
        else cell
        for cell in cells
    ]
