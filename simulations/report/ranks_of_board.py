"""The ranks of a board's rules over its settings, and what they cannot tell."""

import numpy as np

from pncs_flower.plain_text import counted

from ..board.results import BoardResults
from ..run.early_stopping import LAST
from .document import Part, Section, Sheet, Words


def ranks(results: BoardResults) -> Section:
    """Return the table of ranks: in all settings, early and at the end."""
    ranking = results.ranking
    if not ranking.settings:
        text = "No setting has a result of every rule, so there are no ranks."
        return Section("ranks", "Ranks", "Ranks", [Words(text)])
    means, level = ranking.means, set(ranking.level_with_the_best)
    rounds = [n for n in results.about.rounds if results.ranking_after(n).settings]
    early = [results.ranking_after(number).means for number in rounds]
    rows = []
    for line, own in zip(ranking.rules, ranking.ranks, strict=True):
        mean = f"{means[line]:.1f}"
        rows.append(
            [
                line,
                f"**{mean}**" if line in level else mean,
                *(f"{after[line]:.1f}" if line in after else "-" for after in early),
                *(f"{place:g}" for place in own),
                above_uniform(results, line) or "-",
            ]
        )
    headings = ["rule", "mean rank", *(f"after round {n}" for n in rounds)]
    headings += [*ranking.settings, "ends above uniform"]
    caption = (
        f"By accuracy at the end, the mean of the last {LAST} rounds and over seeds; 1 is the "
        "best, and equals share their ranks' mean. Bold: not told apart from the best. In the "
        "middle the mean rank by accuracy after some rounds: who is early."
    )
    limits = (
        "With so few settings the critical difference is a large part of all ranks, so that two "
        "rules may well differ where it says nothing. A rank says nothing of how far apart two "
        "rules are. The settings were chosen, not drawn, and some are alike, so that none of this "
        "speaks of yours: look for the one that is most like it."
    )
    told = f"p {p_value(ranking.p)}" if np.isfinite(ranking.p) else "no test of so few"
    tests = (
        f"Tests: Friedman's of whether the rules differ at all, over {len(ranking.settings)} "
        f"settings: {told}; Nemenyi's critical difference of two mean ranks, for "
        f"{counted(len(ranking.rules), 'entry', 'entries')} (at .05): {ranking.critical:.1f}."
    )
    parts: list[Part] = [Sheet("ranks-table", "Ranks", caption, headings, rows)]
    there = results.settings.values()
    if left_out := [each.name for each in there if each.name not in ranking.settings]:
        parts.append(Words(f"Without ranks, since a rule has no result: {'; '.join(left_out)}."))
    return Section("ranks", "Ranks", "Ranks", [*parts, Words(limits), Words(tests)])


def above_uniform(results: BoardResults, line: str) -> str:
    """Return in how many settings a line ends above uniform selection; empty where in none."""
    told = [
        above for s in results.settings.values() if (above := s.above_uniform(line)) is not None
    ]
    return f"{sum(told)} of {len(told)}" if told else ""


def p_value(p: float) -> str:
    """Return a p with its sign, in three places."""
    return f"= {p:.3f}" if p >= 0.001 else "< 0.001"
