"""Ranks of rules over settings, and whether they differ by more than chance (Demšar 2006)."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

LEVEL = 0.05
"""The p below which a difference is called more than chance."""

_SAME = 10  # decimals: scores that differ by less are equal


class Ranking(NamedTuple):
    """Ranks of rules, 1 for the best, and what tests say of them; NaN where there is no test."""

    rules: Sequence[str]  # the best first, by their mean rank
    settings: Sequence[str]
    ranks: NDArray[np.float64]  # shape (rules, settings), the mean of ranks that are shared
    p: float  # of Friedman's test: that all are alike
    critical: float  # Nemenyi's critical difference of two mean ranks

    @property
    def means(self) -> dict[str, float]:
        """The mean rank of each rule; empty without a setting."""
        if not self.settings:
            return {}
        return dict(zip(self.rules, self.ranks.mean(axis=1).tolist(), strict=True))

    @property
    def level_with_the_best(self) -> list[str]:
        """The rules whose mean rank cannot be told from that of the best."""
        means = self.means
        best = min(means.values())
        if not self.critical < np.inf:
            return [*means]
        return [rule for rule, mean in means.items() if mean - best < self.critical]


def rank(scores: Mapping[str, Mapping[str, float]]) -> Ranking:
    """Rank rules by their scores, ``{setting: {rule: score}}``, in settings that have all of them.

    A rule that some setting lacks leaves that setting out, not the rule: ranks among fewer rules
    would not be of the same kind.
    """
    from scipy import stats  # takes a second, and a wrong file is to be told at once

    rules = list(dict.fromkeys(rule for by_rule in scores.values() for rule in by_rule))
    whole = {name: by_rule for name, by_rule in scores.items() if len(by_rule) == len(rules)}
    table = np.array([[by_rule[rule] for by_rule in whole.values()] for rule in rules])
    table = table.reshape(len(rules), len(whole))
    ranks, order = table, np.arange(len(rules))
    if table.size:
        # A score that is not finite is below all others.
        ranks = stats.rankdata(-np.where(np.isfinite(table), table, -np.inf).round(_SAME), axis=0)
        order = np.argsort(ranks.mean(axis=1), kind="stable")
    ranks, rules = ranks[order], [rules[place] for place in order]
    p = np.nan
    if len(rules) > 2 and len(whole) > 1 and (ranks != ranks.mean()).any():
        p = float(stats.friedmanchisquare(*ranks).pvalue)
    return Ranking(rules, [*whole], ranks, p, critical_difference(len(rules), len(whole)))


def critical_difference(rules: int, settings: int) -> float:
    """Return by how much mean ranks must differ, by Nemenyi's test at `LEVEL`; NaN for one rule."""
    if rules < 2 or settings < 1:
        return np.nan
    from scipy import stats

    quantile = stats.studentized_range.ppf(1 - LEVEL, rules, np.inf) / np.sqrt(2)
    return float(quantile * np.sqrt(rules * (rules + 1) / (6 * settings)))
