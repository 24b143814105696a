"""Statistics over the seeds of a sweep, and whether they bear out what is claimed."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from pncs_flower.plain_text import in_ranges

from .cell import Run
from .plan import Ahead, Best, Claim, Sooner
from .progress import ROUNDS, Vector, to_reach
from .results import SweepResults


class Comparison(NamedTuple):
    """The reference's converged score minus another line's, over the seeds that both have."""

    panel: str
    line: str
    seeds: int
    difference: float
    p: float  # of Wilcoxon's signed-rank test, two-sided
    p_holm: float  # after Holm's correction for all lines of the panel
    least_p: float  # the smallest that so many pairs can give


class Lead(NamedTuple):
    """Which line of a panel ends highest, of those that compete, and how far above the next."""

    panel: str
    line: str
    score: float
    next: str  # empty if there is no other
    margin: float  # the mean over the seeds that both have
    seeds: int
    ahead: int  # of these seeds, those in which it is above the next
    p: float  # that the two differ, corrected for all that might have been compared
    least_p: float  # the smallest that so many seeds can give after this correction


def mean_interval(values: Vector) -> tuple[Vector, Vector]:
    """Return the mean of (seeds, ...) and half of its 95% interval by Student's t, NaN for one."""
    n = len(values)
    mean = values.mean(axis=0)
    if n == 1:
        return mean, np.full_like(mean, np.nan)
    from scipy import stats  # takes a second, and a wrong file is to be told at once

    error = values.std(axis=0, ddof=1) / n**0.5
    return mean, error * float(stats.t.ppf(0.975, n - 1))


def sortable(score: float) -> float:
    """Return a score for an order, in which one that is not finite is below all others."""
    return float(score) if np.isfinite(score) else -np.inf


def percent(share: float) -> str:
    """Return a share in percent, with as many digits as it has."""
    return f"{100 * share:g}%"


def holm(p: Sequence[float]) -> list[float]:
    """Return p-values after Holm's step-down correction for all of them."""
    order = np.argsort(p)
    steps = np.sort(p) * np.arange(len(p), 0, -1)
    adjusted = np.empty(len(p))
    adjusted[order] = np.minimum(1, np.maximum.accumulate(steps))
    return adjusted.tolist()


def compare(results: SweepResults) -> list[Comparison]:
    """Test the converged score of the reference against that of every other line of a panel."""
    found = []
    for panel, lines in results.panels.items():
        own = {run.cell["seed"]: run.converged for run in lines.get(results.reference, ())}
        pairs: dict[str, Vector] = {}
        for line, runs in lines.items():
            both = [own[r.cell["seed"]] - r.converged for r in runs if r.cell["seed"] in own]
            both = [difference for difference in both if np.isfinite(difference)]
            if line != results.reference and both:
                pairs[line] = np.array(both)
        p = [wilcoxon(differences) for differences in pairs.values()]
        for (line, d), own_p, corrected in zip(pairs.items(), p, holm(p), strict=True):
            least = min(1.0, 2.0 ** (1 - len(d)))
            found.append(Comparison(panel, line, len(d), float(d.mean()), own_p, corrected, least))
    return found


def find_leads(results: SweepResults, tests: Sequence[Comparison]) -> list[Lead]:
    """Return who ends highest in each panel.

    The test of the reference against another line was settled before the runs, and its p is that
    of ``tests``. Any other two are found by looking at the results, so that theirs is corrected
    for all pairs of lines that compete.
    """
    return [_lead(results, panel, tests) for panel in results.panels if _competing(results, panel)]


def _competing(results: SweepResults, panel: str) -> list[str]:
    """Return the lines of a panel that compete, the highest first."""
    lines = results.panels[panel]
    means = {line: float(np.mean([run.converged for run in runs])) for line, runs in lines.items()}
    competing = [line for line in lines if line not in results.ceilings]
    return sorted(competing, key=lambda line: -sortable(means[line]))


def _lead(results: SweepResults, panel: str, tests: Sequence[Comparison]) -> Lead:
    order = _competing(results, panel)
    first, second = order[0], (order[1] if len(order) > 1 else "")
    own, others = (
        {run.cell["seed"]: run.converged for run in results.panels[panel].get(line, ())}
        for line in (first, second)
    )
    both = np.array([own[seed] - others[seed] for seed in own if seed in others])
    both = both[np.isfinite(both)]
    score = float(np.mean([*own.values()]))
    if not both.size:
        return Lead(panel, first, score, second, 0.0, 0, 0, 1.0, 1.0)
    planned = [t for t in tests if t.panel == panel]
    pairs = len(order) * (len(order) - 1) // 2
    p, count = min(1.0, pairs * wilcoxon(both)), pairs
    if results.reference in (first, second):
        count = len(planned)
        p = next(test.p_holm for test in planned if test.line in (first, second))
    least = min(1.0, count * 2.0 ** (1 - len(both)))
    ahead = int((both > 0).sum())
    return Lead(panel, first, score, second, float(both.mean()), len(both), ahead, p, least)


def judge(claim: Claim, results: SweepResults, line: str = "") -> tuple[str, list[str]]:
    """Return whether a claim holds, holds in part, does not or is not judged; numbers by panel.

    It is held against the reference, or another line that is named in its place.
    """
    # A panel where a line has no result, or all lines have none, or where the runs end too early,
    # is not judged; a claim that is not judged in all panels at most holds in part.
    wanted = [line or results.reference, *claim.against]
    outcomes: list[bool | None] = []
    numbers = []
    for panel, lines in [*results.panels.items(), *((panel, {}) for panel in results.lost)]:
        chosen = {line: lines[line] for line in wanted if line in lines}
        last = min((len(run.rounds) for runs in chosen.values() for run in runs), default=0)
        holds: bool | None = None
        if len(chosen) < len(wanted):
            absent = (line for line in wanted if line not in chosen)
            text = f"no result for {', '.join(absent)}"
        elif claim.last_round > last:
            text = f"not judged; the runs end in round {last}"
        else:
            holds, shown = _judge_panel(claim, chosen)
            text = f"{'yes' if holds else 'no'}; {shown}"
        outcomes.append(holds)
        numbers.append(results.row(panel, text))
    if all(outcome is None for outcome in outcomes):
        return "not judged", numbers
    if all(outcomes):
        return "holds", numbers
    return ("holds in part" if any(outcomes) else "does not hold"), numbers


def _judge_panel(claim: Claim, lines: Mapping[str, Sequence[Run]]) -> tuple[bool, str]:
    """Hold a claim against runs, first those it is about; return also the numbers that say."""
    if isinstance(claim, Sooner):
        medians = {
            line: to_reach(runs, ROUNDS, claim.target).median for line, runs in lines.items()
        }
        first, *others = medians.values()
        late = all(median > claim.after for median in others)
        shown = (f"{line} {'never' if np.isinf(m) else f'{m:g}'}" for line, m in medians.items())
        text = f"median round that reaches {percent(claim.target)}: {', '.join(shown)}"
        return first <= claim.by and late, text
    if isinstance(claim, Ahead):
        means_over = (mean_interval(np.stack([r.scores for r in s]))[0] for s in lines.values())
        own, *rest = (np.nan_to_num(mean, nan=-np.inf) for mean in means_over)
        behind = np.flatnonzero(own <= np.max(rest, axis=0)) + 1
        behind = behind[behind >= claim.start]
        if not behind.size:
            return True, f"in every round from {claim.start} on"
        where = "round" if behind.size == 1 else "rounds"
        return False, f"behind the best of the others in {where} {in_ranges(behind.tolist())}"
    means = {line: sum(r.converged for r in runs) / len(runs) for line, runs in lines.items()}
    values = list(means.values())
    text = ", ".join(f"{line} {value:.3f}" for line, value in means.items())
    if isinstance(claim, Best):
        return sortable(values[0]) > max(map(sortable, values[1:])), text
    spread = float(np.ptp(values))  # NaN if one of them is
    return spread <= claim.within, f"{text} (spread {spread:.3f})"


def wilcoxon(differences: Vector) -> float:
    """Return the p of Wilcoxon's signed-rank test of paired differences, two-sided."""
    # Ties, and pairs that are alike, are those of exact numbers, not what rounding left of them.
    differences = differences.round(10)
    if len(differences) < 2 or not differences.any():
        return 1.0
    from scipy import stats

    # Signs do not change who ranks where, which scipy's own test, one at a time, would find anew.
    ranks = np.zeros(len(differences))
    ranks[differences != 0] = stats.rankdata(np.abs(differences[differences != 0]))
    # All signs are tried up to 13 pairs: exact, also with ties.
    found = stats.permutation_test(
        (differences,),
        lambda signed, axis: np.sum(ranks * (signed > 0), axis=axis),
        permutation_type="samples",
        n_resamples=9999,
        rng=np.random.default_rng(0),
    )
    return float(found.pvalue)
