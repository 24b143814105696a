"""What the paper says of a figure or table, held against what was measured."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .results import Run, SweepResults, mean_interval, percent, rounds_to_reach

__all__ = ["Verdict", "judge"]

Lines = Mapping[str, Sequence[Run]]
Verdict = tuple[str, list[str]]
"""``"holds"``, ``"holds in part"``, ``"does not hold"`` or ``"not judged"``; numbers by panel."""


def judge(claim: Mapping[str, Any], results: SweepResults) -> Verdict:
    """Hold a claim of `plan.check_claim` against the means over seeds.

    A panel where a line has no result, or all lines have none, or where the runs end too early, is
    not judged; a claim that is not judged in all panels at most holds in part.
    """
    judges: dict[str, Callable[[Mapping[str, Any], Lines, str], tuple[bool, str]]] = {
        "best": _best,
        "similar": _similar,
        "sooner": _sooner,
        "ahead": _ahead,
    }
    outcomes: list[bool | None] = []
    numbers = []
    for panel, lines in results.panels.items():
        wanted = [results.reference, *claim["against"]]
        absent = [line for line in wanted if line not in lines]
        if absent:
            outcomes.append(None)
            numbers.append(results.row(panel, f"no result for {', '.join(absent)}"))
            continue
        chosen = {line: lines[line] for line in wanted}
        last = min(len(run.rounds) for runs in chosen.values() for run in runs)
        if max(claim.get(key, 1) for key in ("from", "by", "after")) > last:
            outcomes.append(None)
            numbers.append(results.row(panel, f"not judged; the runs end in round {last}"))
            continue
        holds, text = judges[claim["kind"]](claim, chosen, results.reference)
        outcomes.append(holds)
        numbers.append(results.row(panel, f"{'yes' if holds else 'no'}; {text}"))
    for panel in results.lost:
        outcomes.append(None)
        numbers.append(f"{panel}: no result")
    if all(outcome is None for outcome in outcomes):
        return "not judged", numbers
    if all(outcomes):
        return "holds", numbers
    return ("holds in part" if any(outcomes) else "does not hold"), numbers


def _converged(lines: Lines) -> dict[str, float]:
    return {line: sum(r.converged for r in runs) / len(runs) for line, runs in lines.items()}


def _shown(values: Mapping[str, float]) -> str:
    return ", ".join(f"{line} {value:.3f}" for line, value in values.items())


def _best(claim: Mapping[str, Any], lines: Lines, reference: str) -> tuple[bool, str]:
    values = _converged(lines)
    own = values[reference]
    return all(own > value for line, value in values.items() if line != reference), _shown(values)


def _similar(claim: Mapping[str, Any], lines: Lines, reference: str) -> tuple[bool, str]:
    values = _converged(lines)
    spread = max(values.values()) - min(values.values())
    return spread <= claim["within"], f"{_shown(values)} (spread {spread:.3f})"


def _sooner(claim: Mapping[str, Any], lines: Lines, reference: str) -> tuple[bool, str]:
    medians = {line: rounds_to_reach(runs, claim["target"])[0] for line, runs in lines.items()}
    own = medians[reference]
    others = [median for line, median in medians.items() if line != reference]
    holds = (
        own is not None
        and own <= claim["by"]
        and all(median is None or median > claim["after"] for median in others)
    )
    shown = (f"{line} {'never' if m is None else f'{m:g}'}" for line, m in medians.items())
    return holds, f"median round that reaches {percent(claim['target'])}: {', '.join(shown)}"


def _ahead(claim: Mapping[str, Any], lines: Lines, reference: str) -> tuple[bool, str]:
    means = {
        line: mean_interval(np.stack([r.accuracy for r in runs]))[0] for line, runs in lines.items()
    }
    own = means.pop(reference)
    best = np.max(list(means.values()), axis=0)
    behind = [i + 1 for i in range(claim["from"] - 1, len(own)) if own[i] <= best[i]]
    if not behind:
        return True, "in every one of these rounds"
    return False, f"behind the best of the others in rounds {', '.join(map(str, behind))}"
