"""What a report on a sweep says in sentences: what was compared, and what came out."""

from collections.abc import Iterable, Mapping, Sequence
from math import floor, isfinite, log2
from typing import Any, NamedTuple

from markupsafe import Markup

from pncs_flower.plain_text import counted, first_of

from ..run.early_stopping import LAST
from ..sweep.results import SweepResults
from ..sweep.statistics import Comparison, Lead, find_leads
from ..sweep.sweep import short

SURE = 0.05
"""The p below which a difference is called more than chance."""


class Verdict(NamedTuple):
    """What came out in a panel."""

    panel: str  # what sets it apart from the others; empty where there is but one
    lead: Markup  # who ends highest
    reference: Markup  # how the line that is tested stands beside the others; empty: no test


def competing(results: SweepResults) -> list[str]:
    """Return the lines that compete: all but the ceilings."""
    return [line for line in results.lines if line not in results.ceilings]


def what_was_compared(results: SweepResults, data: str) -> str:
    """Return the sentence that the page begins with."""
    lines = competing(results)
    settings = [run.cell["settings"] for run in results.runs]
    clients = counted(int(results.runs[0].cell["clients"]), "client")
    if lines:
        own = [run.cell["settings"] for run in results.runs if run.cell["line"] in lines]
        selected = _either(each["num-selected"] for each in own)
        entries = counted(len(lines), "entry", "entries")
        begin = f"{entries} with {selected} of {clients} chosen"
    else:
        begin = f"All of {clients}"
    rounds = _either(len(run.rounds) for run in results.runs)
    begin += (
        f" in {'each of ' if rounds != '1' else ''}{rounds} round{'s' if rounds != '1' else ''}"
    )
    if lines and results.ceilings:
        begin += ", and all clients at once for comparison"
    seeds = len({run.cell["seed"] for run in results.runs})
    parts = [begin, f"on {data}", _dealt(settings), _devices(settings)]
    numbers = f"{counted(seeds, 'seed')}, {counted(len(results.runs), 'run')}"
    return f"{', '.join(filter(None, parts))}: {numbers}."


def last_rounds(results: SweepResults) -> str:
    """Return which rounds the score that lines are compared by is the mean of."""
    rounds = max(len(run.rounds) for run in results.runs)
    if rounds > LAST:
        return f"the last {LAST} rounds"
    return {1: "the only round", 2: "both rounds"}.get(rounds, f"all {rounds} rounds")


def verdicts_of(results: SweepResults, tests: Sequence[Comparison]) -> list[Verdict]:
    """Return what came out in each panel."""
    found = []
    for lead in find_leads(results, tests):
        own = [test for test in tests if test.panel == lead.panel]
        words = _beside_the_others(results.reference, own)
        found.append(Verdict(results.label(lead.panel), _who_leads(lead), words))
    return found


def least_and_most(
    values: Mapping[str, float], form: str, least: str, most: str, alike: str, unit: str = ""
) -> str:
    """Return which lines have the smallest value and which the largest, as far as it is shown."""
    shown = {name: f"{value:{form}}{unit}" for name, value in values.items()}
    low, high = (shown[pick(values, key=values.__getitem__)] for pick in (min, max))
    if low == high:
        return f"{alike} {low}{' with any rule' if len(values) > 1 else ''}."
    lowest, highest = ([name for name in shown if shown[name] == end] for end in (low, high))
    return f"{least} {_some(lowest)}, {low}. {most} {_some(highest)}, {high}."


def _who_leads(lead: Lead) -> Markup:
    if not isfinite(lead.score):
        return Markup("No rule has a finite score in these rounds.")
    words = Markup("<strong>{}</strong> is highest, at {:.3f}").format(lead.line, lead.score)
    if not lead.next:
        return Markup("<strong>{}</strong> has nothing beside it: it is at {:.3f}.").format(
            lead.line, lead.score
        )
    if not lead.seeds:
        return (
            words + f"; {lead.next}, the next, has no finite score with the same seeds, so no test."
        )
    if not lead.margin and not lead.ahead:
        return words + f"; {lead.next} is level with it."
    lower = "lower" if lead.margin >= 0 else "higher with the seeds that both have"
    words += f"; {lead.next} is next, {abs(lead.margin):.3f} {lower}"
    seeds = f"higher with {lead.ahead} of {counted(lead.seeds, 'seed')}"
    if lead.p < SURE:
        return (
            words + Markup(", <em>more than chance</em> ({}; {})").format(_p(lead.p), seeds) + "."
        )
    if lead.least_p >= SURE:
        few = Markup(", <em>too few seeds to tell that from chance</em> ({})").format(seeds)
        return words + few + "."
    return words + Markup(", <em>which may be chance</em> ({}; {})").format(_p(lead.p), seeds) + "."


def _beside_the_others(reference: str, tests: Sequence[Comparison]) -> Markup:
    if not tests:
        return Markup("")
    # The fewest with which the smallest p, 2 ** (1 - seeds), stays small enough after Holm.
    enough = 2 + floor(log2(len(tests) / SURE))
    if all(test.least_p * len(tests) >= SURE for test in tests):
        seeds = counted(max(test.seeds for test in tests), "seed")
        return Markup(
            "With {} no difference of <strong>{}</strong> from the others can be told from chance: "
            "it takes {} seeds for so many rules."
        ).format(seeds, reference, enough)
    sure = [test for test in tests if test.p_holm < SURE]
    above = [test.line for test in sure if test.difference > 0]
    below = [test.line for test in sure if test.difference < 0]
    rest = [test.line for test in tests if test not in sure]
    parts = []
    if above:
        parts.append(f"is above {_some(above, 8)}")
    if below:
        parts.append(f"{'' if above else 'is '}below {_some(below, 8)}")
    words = Markup("<strong>{}</strong> ").format(reference)
    if parts:
        words += Markup("{} <em>by more than chance</em>").format(" and ".join(parts))
    if rest:
        words += f"{'; it ' if parts else ''}cannot be told from {_some(rest, 8)}"
    return words + "."


def _dealt(settings: Sequence[Mapping[str, Any]]) -> str:
    """Return how examples are divided among clients."""

    def values(partition: str, key: str) -> str:
        return _either(each[key] for each in settings if each["partition"] == partition)

    ways = []
    if shards := values("shards", "shards-per-client"):
        ways.append(f"{shards} label shard{'' if shards == '1' else 's'} for each client")
    if alpha := values("dirichlet", "dirichlet-alpha"):
        ways.append(f"labels by a Dirichlet distribution ({alpha})")
    if any(each["partition"] == "natural" for each in settings):
        ways.append("the clients of the data itself")
    if any(each["partition"] == "iid" for each in settings):
        ways.append("examples dealt at random")
    return f"with {', or '.join(ways)}" if ways else ""


def _devices(settings: Sequence[Mapping[str, Any]]) -> str:
    """Return what clients are simulated to run on."""
    names = {str(each.get("devices", "none")) for each in settings}
    simulated = _either(names - {"none"})
    if not simulated:
        return ""
    return f"on simulated devices ({simulated}){' and without' if 'none' in names else ''}"


def _either(values: Iterable[Any]) -> str:
    """Return all values, such as ``"1, 2 or 5"``."""
    in_order = sorted(set(values))
    *most, last = [short(value) for value in in_order] or [""]
    return f"{', '.join(most)} or {last}" if most else last


def _all(names: Sequence[str]) -> str:
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


def _some(names: Sequence[str], most: int = 4) -> str:
    return _all(names) if len(names) <= most else first_of(names, most - 1)


def _p(p: float) -> str:
    return f"p = {p:.3f}" if p >= 0.001 else "p < 0.001"
