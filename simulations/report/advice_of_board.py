"""What a board's page advises: over all settings, and in each of them."""

# Names of rules and settings may have commas, so lists of them have semicolons.

from collections.abc import Iterable, Mapping

import numpy as np

from pncs_flower.plain_text import counted

from ..board.ranks import LEVEL, Ranking
from ..board.results import TRAININGS, UNIFORM, BoardResults, Standings
from ..sweep.progress import TIME, Reached, Spent
from ..sweep.statistics import Lead, compare, find_leads
from .document import Items, Section, Sheet, Words
from .ranks_of_board import above_uniform, p_value
from .units import ONES, SECONDS, readable

_NEAR = 0.01  # of accuracy: what is so near to the best is named beside it
_SAME = 10  # decimals: scores that differ by less are equal, as in the ranks


def advice(results: BoardResults) -> Section:
    """Return which rule to take: over all settings in words, in each of them in a table."""
    settings = [*results.settings.values()]
    timed = any(_least(each, TIME) for each in settings)
    headings = ["setting", "all clients", UNIFORM, "ends highest", "train in a round"]
    headings += ["highest where only senders train", "train in a round", "target"]
    headings += ["fewest trainings until there"]
    headings += ["first there in simulated time"] if timed else []
    caption = (
        "Accuracy at the end. Train in a round: so many clients, with the rule to the left. The "
        "target is nine tenths of what all clients reach, or else the best rule; in brackets what "
        "all clients take until there, and with how many seeds a rule gets there if not with all. "
        "Rules that are equal stand side by side."
    )
    rows = [_row(each, timed) for each in settings]
    texts = [*_limits(settings), *_overall(results), *filter(None, map(_next, settings))]
    return Section(
        "which",
        "Which rule?",
        "Which rule?",
        [
            Items(texts),
            Sheet("which-table", "Setting by setting", caption, headings, rows, "sortable words"),
            Words("What each does and asks for: [Which rule?](which-rule.md)"),
        ],
    )


def _limits(settings: Iterable[Standings]) -> Iterable[str]:
    """Return what differences cannot be trusted."""
    halves = [each.half(line) for each in settings for line in each.competing]
    if known := [half for half in halves if np.isfinite(half)]:
        yield (
            "**Read a difference with the intervals:** half of the 95% interval of an accuracy at "
            f"the end is {100 * float(np.median(known)):.1f} points here, in the median of all "
            "entries and settings."
        )
    leads = map(_lead_of, settings)
    if few := [lead for lead in leads if lead.seeds and lead.least_p >= LEVEL]:
        yield (
            f"**What {counted(max(lead.seeds for lead in few), 'seed')} cannot tell:** whether the "
            "best rule of a single setting is better than the next by more than chance. The ranks "
            "over all settings can tell more."
        )


def _overall(results: BoardResults) -> Iterable[str]:
    if results.ranking.settings:
        yield _first("Over all settings", results.ranking)
    senders = results.only_the_chosen_train
    if not senders or len(senders) == len(results.lines):
        return
    ranking = results.ranking_of_senders
    if not ranking.settings:
        return
    each = []
    for line in ranking.rules:
        above = above_uniform(results, line)
        each.append(f"{line} {ranking.means[line]:.1f}" + (f" ({above})" if above else ""))
    where, which = "Where only those who send shall train", " with which it is so in all settings"
    yield (
        f"{_first(where, ranking, which)} Their mean ranks among themselves, and in how many "
        f"settings they end above uniform: {'; '.join(each)}."
    )


def _first(where: str, ranking: Ranking, which: str = "") -> str:
    """Return who has the best mean rank, and who cannot be told from it."""
    means, level = ranking.means, ranking.level_with_the_best
    best = [line for line in ranking.rules if means[line] == min(means.values())]
    words = (
        f"**{where}: {'; '.join(best)}**, with a mean rank of {means[best[0]]:.1f} among "
        f"{counted(len(ranking.rules), 'entry', 'entries')}{which}."
    )
    if not ranking.p < LEVEL:
        return f"{words} That they differ at all is not shown (Friedman's test)."
    others = [f"{line} ({means[line]:.1f})" for line in level if line not in best]
    if not others:
        return f"{words} All others rank below by more than chance."
    return f"{words} By their ranks these cannot be told from it: {'; '.join(others)}."


def _next(each: Standings) -> str:
    """Return whether the best of a setting is so by more than chance, where seeds can tell."""
    lead = _lead_of(each)
    if not lead.next or lead.least_p >= LEVEL:
        return ""
    return (
        f"**{each.name}:** the next, {lead.next}, is below {lead.line} with {lead.ahead} of "
        f"{counted(lead.seeds, 'seed')} (p {p_value(lead.p)}, for all pairs)."
    )


def _lead_of(each: Standings) -> Lead:
    (lead,) = find_leads(each.results, compare(each.results))
    return lead


def _row(each: Standings, timed: bool) -> list[str]:
    ends = each.ends
    beside = [f"{ends[x]:.3f}" if x in ends else "-" for x in (each.ceiling, UNIFORM)]
    found = [each.name, *beside, *_highest(each, each.competing, bold=True)]
    found += _highest(each, [x for x in each.competing if each.only_the_chosen_train(x)])
    found += [f"{each.target:.2f}", _until(each, TRAININGS)]
    return [*found, _until(each, TIME)] if timed else found


def _highest(each: Standings, lines: list[str], *, bold: bool = False) -> tuple[str, str]:
    """Return which of some lines end highest and which nearly so; how many clients they train."""
    ends = {line: each.ends[line] for line in lines if np.isfinite(each.ends[line])}
    if not ends:
        return "-", "-"
    best = _extreme({line: -round(end, _SAME) for line, end in ends.items()})
    top = ends[best[0]]
    names = "; ".join(best)
    words = f"{f'**{names}**' if bold else names}: {top:.3f}"
    near = [line for line in ends if line not in best and top - ends[line] <= _NEAR]
    if near:
        near.sort(key=lambda line: -ends[line])
        words += ". Within a point: " + "; ".join(f"{line}: {ends[line]:.3f}" for line in near)
    return words, "; ".join(dict.fromkeys(f"{each.training(line):.0f}" for line in best))


def _least(each: Standings, spent: Spent) -> dict[str, Reached]:
    """Return the competing lines that take the least to the target, if any gets there."""
    found = {line: each.to_target(line, spent) for line in each.competing}
    there = {line: own for line, own in found.items() if own and np.isfinite(own.median)}
    return {line: there[line] for line in _extreme({x: own.median for x, own in there.items()})}


def _extreme(values: Mapping[str, float]) -> list[str]:
    """Return the names with the smallest value."""
    least = min(values.values(), default=np.nan)
    return [name for name, value in values.items() if value == least]


def _until(each: Standings, spent: Spent) -> str:
    """Return who takes the least to the target, and what all clients take."""
    least = _least(each, spent)
    if not least:
        return "-"
    names = "; ".join(
        line if own.there == own.seeds else f"{line} ({own.there} of {own.seeds})"
        for line, own in least.items()
    )
    words = f"{names}: {_amount(next(iter(least.values())), spent)}"
    all_ = each.ceiling and each.to_target(each.ceiling, spent)
    return f"{words} (all: {_amount(all_, spent)})" if all_ else words


def _amount(reached: Reached, spent: Spent) -> str:
    if not np.isfinite(reached.median):
        return "never"
    return readable(reached.median, SECONDS if spent == TIME else ONES)
