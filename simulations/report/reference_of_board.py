"""What a board shows of the rule that claims are about, here and where they come from."""

from collections.abc import Sequence

from pncs_flower.plain_text import counted

from ..board.results import BoardResults, Standings
from ..sweep.plan import Ahead, Claim
from ..sweep.statistics import judge
from .document import Items, Part, Section, Words

_IN_TURN = "round-robin"


def reference(results: BoardResults) -> list[Section]:
    """Return the section on the rule that claims are about; none where it has no result."""
    settings = [*results.settings.values()]
    name = settings[0].results.reference
    there = [each for each in settings if name in each.runs]
    if not there:
        return []
    parts: list[Part] = [Items([*_when(results, name), *_where(there, name)])]
    if claims := there[0].results.about.report.claims:
        readings = [name, *_other_readings(there, name)]
        said = [f"“{claim.text}”: {_verdicts(claim, there, readings)}" for claim in claims]
        heading = "What its paper says, held against the means over seeds in these settings:"
        parts += [Words(heading), Items(said)]
    parts += [Words(f"More: [{each.text}]({each.page}).") for each in results.about.see]
    return [Section("reference", f"What {name} does well, and what not", name, parts)]


def _when(results: BoardResults, name: str) -> list[str]:
    if name not in results.ranking.means:
        return []
    means = {n: results.ranking_after(n).means for n in results.about.rounds}
    course = [f"{own[name]:.1f} after round {n}" for n, own in means.items() if name in own]
    course.append(f"{results.ranking.means[name]:.1f} at the end")
    return [f"**When:** its mean rank is {', '.join(course)}."]


def _where(there: Sequence[Standings], name: str) -> list[str]:
    places = {each.name: each.place(name) for each in there}
    ends = []
    for place in (min(places.values()), max(places.values())):
        where = "; ".join(setting for setting, own in places.items() if own == place)
        ends.append(f"number {place} of {len(there[0].competing)} ({where})")
    texts = [f"**Where:** at best it is {ends[0]}, and at worst {ends[1]}."]
    beside = {s.name: own for s in there if (own := s.above_uniform(name)) is not None}
    if beside:
        above = [setting for setting, higher in beside.items() if higher]
        shown = f" ({'; '.join(above)})" if above else ""
        texts.append(
            f"**Beside uniform selection** it ends higher in {len(above)} of "
            f"{counted(len(beside), 'setting')}{shown}."
        )
    return texts


def _other_readings(there: Sequence[Standings], name: str) -> list[str]:
    """Return the other lines of the same rule, which read its paper in another way."""
    rules = {
        line: each.runs[line][0].cell["settings"]["strategy"]
        for each in there
        for line in each.competing
    }
    return [line for line, rule in rules.items() if rule == rules[name] and line != name]


def _verdicts(claim: Claim, there: Sequence[Standings], readings: Sequence[str]) -> str:
    """Return in how many settings a claim is seen, as published and by other readings."""
    found: list[str] = []
    for line in readings:
        judged = [each for each in there if _verdict(claim, each, line) != "not judged"]
        yes = [each for each in judged if _verdict(claim, each, line) == "holds"]
        if not judged:
            continue
        word = "seen" if len(yes) == len(judged) else "seen in part" if yes else "**not seen**"
        where = f" ({'; '.join(each.name for each in yes)})" if 0 < len(yes) < len(judged) else ""
        of_all = f"in {len(yes)} of {counted(len(judged), 'setting')}{where}"
        words = f"{f'With {line}: ' if found else ''}{word}, {of_all}."
        found.append(f"{words}{_rotations(claim, yes, line)}")
    if found and isinstance(claim, Ahead):
        found.append(f"Seen is what holds in every round from round {claim.start} on.")
    return " ".join(found) or "not judged."


def _rotations(claim: Claim, seen: Sequence[Standings], line: str) -> str:
    """Return where a claim is seen only because nothing was left to choose."""
    rotations = [each for each in seen if each.queue(line).is_rotation]
    if not rotations:
        return ""
    words = (
        f" In {len(rotations)} of these ({'; '.join(each.name for each in rotations)}) so many "
        "rest that nothing is left to choose: it is a rotation there"
    )
    passed = sum(_verdict(claim, each, _IN_TURN) == "holds" for each in rotations)
    return f"{words}, and {_IN_TURN} passes too in {passed} of them." if passed else f"{words}."


def _verdict(claim: Claim, each: Standings, line: str) -> str:
    return judge(claim, each.results, line)[0]
