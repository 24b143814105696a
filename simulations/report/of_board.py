"""One page on a board, and its twin in Markdown: which rule where, in what was measured."""

# Names of rules and settings may have commas, so lists of them have semicolons.

import inspect
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pncs_flower.files import write_whole
from pncs_flower.plain_text import counted
from pncs_flower.strategies.rules import STRATEGIES

from ..board.ranks import LEVEL, Ranking
from ..board.results import TRAININGS, BoardResults, Standings
from ..config import default_run_config
from ..run.early_stopping import LAST
from ..sweep.plan import Claim
from ..sweep.progress import BYTES, ROUNDS, TIME, Reached, Spent
from ..sweep.statistics import Lead, compare, find_leads, judge, mean_interval
from ..sweep.sweep import short
from .document import Command, Drawing, Items, Part, Section, Sheet, Words, write_both
from .page import write_csv
from .picture_of_board import draw_board
from .units import BYTES as BYTE_UNITS
from .units import SECONDS, Unit, in_unit, unit_for
from .words_of_sweep import what_was_compared

PAGE, TWIN, PICTURE = "report.html", "leaderboard.md", "leaderboard.svg"
"""Names of the page, of its twin in Markdown and of the picture, in a board's folder."""

NUMBERS = "leaderboard.csv"
"""Name of the file with the numbers."""

_OF_A_LINE = ("rule", "combine", "queue-length", "rest-rounds")
_NEAR = 0.01  # of accuracy: what is so near to the best is named beside it
_UNIFORM = "uniform"


def write_board(folder: Path, results: BoardResults) -> Path:
    """Write the page, its twin, the picture and the numbers of a board."""
    picture = draw_board(results)
    write_whole(folder / PICTURE, picture.file)
    _write_numbers(folder / NUMBERS, results)
    sections = [
        Section(
            "picture",
            "All rules in all settings",
            "Picture",
            [
                Drawing(picture.on_page, picture.words, PICTURE),
                Words(
                    "Points of accuracy at the end beside all clients, who train and send in every "
                    "round: 0.0 is as good as if nobody were left out, and the darker the nearer. "
                    "Framed: the best rule of a setting. The mean rank is over the settings, 1 for "
                    "the best; rules are in its order."
                ),
            ],
        ),
        Section(
            "which",
            "Which rule?",
            "Which rule?",
            [
                Items(_advice(results)),
                Words("What each does and asks for: [Which rule?](which-rule.md)"),
            ],
        ),
        _ranks(results),
        *_reference(results),
        *(_setting(key, each) for key, each in results.settings.items()),
        _rules(results),
        _made(results),
    ]
    return write_both(folder / PAGE, results.about.title, _lead(results), sections, twin=TWIN)


def _lead(results: BoardResults) -> str:
    settings = [*results.settings.values()]
    runs = sum(len(each.results.runs) for each in settings)
    lead = (
        f"{counted(len(results.lines), 'rule')} in {counted(len(settings), 'setting')}, "
        f"{counted(runs, 'run')}. {results.about.about}"
    ).strip()
    lacking = [
        f"{each.name} {counted(len(each.results.missing), 'run')}"
        for each in settings
        if each.results.missing
    ]
    lacking += [f"{name} all runs" for name in results.missing]
    return f"{lead} **Not there yet: {'; '.join(lacking)}.**" if lacking else lead


def _advice(results: BoardResults) -> list[str]:
    """Return what to take in all, and in each setting: in whole sentences, for a newcomer."""
    found = []
    if results.ranking.settings:
        found.append(_overall(results.ranking))
    found += [_advice_for(each) for each in results.settings.values()]
    leads = [_lead_of(each) for each in results.settings.values()]
    if few := [lead for lead in leads if lead.seeds and lead.least_p >= LEVEL]:
        found.append(
            f"**What {counted(max(lead.seeds for lead in few), 'seed')} cannot tell:** whether the "
            "best rule of a single setting is better than the next by more than chance. The ranks "
            "over all settings can tell more."
        )
    return found


def _overall(ranking: Ranking) -> str:
    means, level = ranking.means, ranking.level_with_the_best
    best = ranking.rules[0]
    words = (
        f"**Over all settings: {best}**, with a mean rank of {means[best]:.1f} among "
        f"{counted(len(ranking.rules), 'rule')}."
    )
    if not ranking.p < LEVEL:
        return f"{words} That the rules differ at all is not shown (Friedman's test)."
    others = [f"{rule} ({means[rule]:.1f})" for rule in level if rule != best]
    if not others:
        return f"{words} All others rank below it by more than chance."
    return f"{words} By their ranks these cannot be told from it: {'; '.join(others)}."


def _advice_for(each: Standings) -> str:
    best, ends = each.best, each.ends
    beside = [f"{line} {ends[line]:.3f}" for line in (each.ceiling, _UNIFORM) if line in ends]
    words = f"**{each.name}: {best}** ends highest, at {ends[best]:.3f}"
    words += f" ({'; '.join(beside)})." if beside else "."
    near = sorted(
        (line for line in each.competing if line != best and ends[best] - ends[line] <= _NEAR),
        key=lambda line: -ends[line],
    )
    if near:
        shown = "; ".join(f"{line} {ends[line]:.3f}" for line in near)
        words += f" Within a point of it: {shown}."
    cheap = [line for line in each.competing if each.only_the_chosen_train(line)]
    if cheap and best not in cheap:
        first = max(cheap, key=ends.__getitem__)
        words += f" **Where only those who send shall train: {first}**, at {ends[first]:.3f}."
    if least := _least(each, TRAININGS):
        line, reached = least
        words += (
            f" Fewest trainings until {each.target:.2f}: {line}, {reached.median:,.0f}"
            + _of_seeds(reached)
        )
    if least := _least(each, TIME):
        line, reached = least
        unit = unit_for(reached.median, SECONDS)
        words += f" First there in simulated time: {line}, {in_unit(reached.median, unit)}"
        words += f" {unit.name}{_of_seeds(reached)}"
    lead = _lead_of(each)
    if lead.next and lead.least_p < LEVEL:
        words += (
            f" The next, {lead.next}, is below {lead.line} with {lead.ahead} of "
            f"{counted(lead.seeds, 'seed')} (p {_p(lead.p)}, for all pairs)."
        )
    return words


def _lead_of(each: Standings) -> Lead:
    (lead,) = find_leads(each.results, compare(each.results))
    return lead


def _of_seeds(reached: Reached) -> str:
    if reached.there == reached.seeds:
        return "."
    return f" (there with {reached.there} of {counted(reached.seeds, 'seed')})."


def _least(each: Standings, spent: Spent) -> tuple[str, Reached] | None:
    """Return the competing line that takes the least to the target, if any gets there."""
    found = [(line, each.to_target(line, spent)) for line in each.competing]
    there = [(line, reached) for line, reached in found if reached and np.isfinite(reached.median)]
    return min(there, key=lambda pair: pair[1].median, default=None)


def _ranks(results: BoardResults) -> Section:
    ranking = results.ranking
    if not ranking.settings:
        text = "No setting has a result of every rule, so there are no ranks."
        return Section("ranks", "Ranks", "Ranks", [Words(text)])
    means, level = ranking.means, set(ranking.level_with_the_best)
    rounds = [n for n in results.about.rounds if results.ranking_after(n).settings]
    early = [results.ranking_after(number).means for number in rounds]
    settings = [*results.settings.values()]
    rows = []
    for line, ranks in zip(ranking.rules, ranking.ranks, strict=True):
        above = [
            s.ends[line] > s.ends[_UNIFORM]
            for s in settings
            if line in s.ends and _UNIFORM in s.ends
        ]
        mean = f"{means[line]:.1f}"
        rows.append(
            [
                line,
                f"**{mean}**" if line in level else mean,
                *(f"{own[line]:.1f}" if line in own else "-" for own in early),
                *(f"{own:g}" for own in ranks),
                "-" if line == _UNIFORM or not above else f"{sum(above)} of {len(above)}",
            ]
        )
    headings = ["rule", "mean rank", *(f"after round {n}" for n in rounds)]
    headings += [*ranking.settings, "ends above uniform"]
    told = f"p {_p(ranking.p)}" if np.isfinite(ranking.p) else "no test of so few"
    caption = (
        f"By accuracy at the end, the mean of the last {LAST} rounds and over seeds; 1 is the "
        "best, and equals share their ranks' mean. Bold: not told apart from the best. In the "
        "middle the mean rank by accuracy after some rounds: who is early."
    )
    tests = (
        f"**Are the rules different at all?** Friedman's test over {len(ranking.settings)} "
        f"settings: {told}. **By how much must two mean ranks differ?** By "
        f"{ranking.critical:.1f}, Nemenyi's critical difference for "
        f"{counted(len(ranking.rules), 'rule')} (at .05)."
    )
    limits = (
        "What this cannot tell: with so few settings the critical difference is a large part of "
        "all ranks, so that two rules may well differ where it says nothing. A rank says nothing "
        "of how far apart two rules are. The settings were chosen, not drawn, and some are "
        "alike, so that none of this speaks of yours: look for the one that is most like it."
    )
    parts: list[Part] = [
        Words(tests),
        Words(limits),
        Sheet("ranks-table", "Ranks", caption, headings, rows),
    ]
    left_out = [s.name for s in settings if s.name not in ranking.settings]
    if left_out:
        parts.insert(2, Words(f"Without ranks, since a rule has no result: {'; '.join(left_out)}."))
    return Section("ranks", "Ranks", "Ranks", parts)


def _reference(results: BoardResults) -> list[Section]:
    """Return what is said of the rule that claims are about, here and where they come from."""
    settings = [*results.settings.values()]
    name = settings[0].results.reference
    there = [each for each in settings if name in each.runs]
    if not there:
        return []
    places = sorted((_place(each, name), each.name) for each in there)
    numbers = [n for n in results.about.rounds if name in results.ranking_after(n).means]
    early = {n: results.ranking_after(n).means[name] for n in numbers}
    texts = []
    if early and name in results.ranking.means:
        first = min(early, key=early.__getitem__)
        course = ", ".join(f"{rank:.1f} after round {n}" for n, rank in early.items())
        texts.append(
            f"**When:** its mean rank is {course}, and {results.ranking.means[name]:.1f} at the "
            f"end; the best of these is after round {first}."
        )
    of = len(there[0].competing)
    good, bad = places[0], places[-1]
    texts.append(
        f"**Where:** it does best in {good[1]}, as number {good[0]} of {of}, and worst in "
        f"{bad[1]}, as number {bad[0]}."
    )
    beside = [each for each in there if _UNIFORM in each.ends and name != _UNIFORM]
    if beside:
        above = [each.name for each in beside if each.ends[name] > each.ends[_UNIFORM]]
        shown = f" ({'; '.join(above)})" if above else ""
        texts.append(
            f"**Beside uniform selection** it ends higher in {len(above)} of "
            f"{counted(len(beside), 'setting')}{shown}."
        )
    parts: list[Part] = [Items(texts)]
    if claims := there[0].results.about.report.claims:
        readings = [name, *_other_readings(there, name)]
        said = [f"“{claim.text}”: {_verdicts(claim, there, readings)}" for claim in claims]
        heading = "What its paper says, held against the means over seeds in these settings:"
        parts += [Words(heading), Items(said)]
    parts += [Words(f"More: [{each.text}]({each.page}).") for each in results.about.see]
    return [Section("reference", f"What {name} does well, and what not", name, parts)]


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
        verdicts = {each.name: judge(claim, each.results, line)[0] for each in there}
        yes = [setting for setting, verdict in verdicts.items() if verdict == "holds"]
        judged = sum(verdict != "not judged" for verdict in verdicts.values())
        if not judged:
            continue
        word = "seen" if len(yes) == judged else "seen in part" if yes else "**not seen**"
        where = f" ({'; '.join(yes)})" if 0 < len(yes) < judged else ""
        of_all = f"in {len(yes)} of {counted(judged, 'setting')}{where}"
        found.append(f"{f'With {line}: ' if found else ''}{word}, {of_all}.")
    return " ".join(found) or "not judged."


def _place(each: Standings, line: str) -> int:
    """Return at which place a line ends, 1 for the highest."""
    return 1 + sum(each.ends[other] > each.ends[line] for other in each.competing)


def _setting(key: str, each: Standings) -> Section:
    config = each.first.cell["settings"]
    data = each.first.summary["data"]
    tune = each.results.about.tune
    rate = (
        f"of {', '.join(map(short, tune.lr))} the best for each rule, by validation examples and "
        f"{counted(tune.seeds, 'other seed')}"
        if tune
        else f"{short(config['lr'])} for all"
    )
    size = config["batch-size"]
    step = f"batches of {size}" if size else "one step with all examples"
    facts = (
        f"{what_was_compared(each.results, data)} Network: {config['model']}; "
        f"{counted(config['local-epochs'], 'local epoch')}, {step}; learning rate: {rate}."
    )
    rounds = [n for n in each.results.about.report.rounds if n <= len(each.first.rounds)]
    rows = [_row(each, line, rounds) for line in sorted(each.runs, key=lambda x: -each.ends[x])]
    time = unit_for(_largest(each, TIME), SECONDS)
    bytes_ = unit_for(_largest(each, BYTES), BYTE_UNITS)
    timed = any(each.to_target(line, TIME) for line in each.runs)
    target = f"{each.target:.2f}"
    headings = ["rule", "at the end", *(f"round {n}" for n in rounds), f"rounds to {target}"]
    headings += [f"{time.name} to {target}"] if timed else []
    headings += [f"{bytes_.name} to {target}", f"trainings to {target}", "train in a round"]
    headings += ["never chosen", "Gini of turns", "worst tenth", *(["rate"] if tune else [])]
    caption = (
        f"Accuracy, mean over seeds, ± half of the 95% interval; the best in bold. To {target}, "
        "nine tenths of "
        + ("what all clients reach" if each.ceiling else "the best rule's accuracy")
        + " at the end: the median over seeds, in brackets how many get there if it is not all; "
        + ("simulated time; " if timed else "")
        + "bytes both ways of all clients; trainings of single clients (to tell a loss, as some "
        "are asked to, is none). Who takes part: how many train in a round, clients never chosen, "
        "how unequal the turns are (0: all alike), and accuracy by the labels of the tenth of "
        "clients for whom it is lowest."
    )
    about = f"{each.about} " if each.about else ""
    parts: list[Part] = [
        Words(f"{about}{facts}"),
        Sheet(f"{key}-table", each.name, caption, headings, rows),
    ]
    return Section(key, each.name, each.name, parts)


def _row(each: Standings, line: str, rounds: Sequence[int]) -> list[str]:
    runs = each.runs[line]
    mean, half = mean_interval(np.array([run.converged for run in runs]))
    end = f"{mean:.3f}" + (f" ± {half:.3f}" if np.isfinite(half) else "")
    found = [line, f"**{end}**" if line == each.best else end]
    found += [f"{np.mean([run.scores[n - 1] for run in runs]):.3f}" for n in rounds]
    units = {
        ROUNDS: Unit("", 1),
        TIME: unit_for(_largest(each, TIME), SECONDS),
        BYTES: unit_for(_largest(each, BYTES), BYTE_UNITS),
        TRAININGS: Unit("", 1),
    }
    timed = any(each.to_target(other, TIME) for other in each.runs)
    for spent, unit in units.items():
        if spent != TIME or timed:
            reached = each.to_target(line, spent)
            found.append("-" if reached is None else _when(reached, unit))
    found.append(f"{each.training(line):.0f}")
    for name, form in (("never-chosen", ".1f"), ("gini", ".2f"), ("worst-tenth-accuracy", ".3f")):
        values = [run.summary.get(name) for run in runs]
        known = [value for value in values if value is not None]
        found.append(f"{np.mean(known):{form}}" if known else "-")
    if each.results.about.tune:
        rates = {tuned.line: short(tuned.lr) for tuned in each.results.about.tuned}
        found.append(rates.get(line, "-"))
    return found


def _largest(each: Standings, spent: Spent) -> float:
    """Return the largest median that a line takes to the target, of those that compete."""
    # All clients at once may take a thousand times as long, since they wait for the last of all.
    found = [each.to_target(line, spent) for line in each.competing]
    medians = [reached.median for reached in found if reached]
    return max(filter(np.isfinite, medians), default=0.0)


def _when(reached: Reached, unit: Unit) -> str:
    if not np.isfinite(reached.median):
        return f"never ({reached.there} of {reached.seeds})" if reached.there else "never"
    there = "" if reached.there == reached.seeds else f" ({reached.there} of {reached.seeds})"
    return f"{in_unit(reached.median, unit)}{there}"


def _rules(results: BoardResults) -> Section:
    """Return what each line is, in the words of its documentation, and what it is made with."""
    defaults = default_run_config()
    of_lines = {
        line: (each, runs[0].cell["settings"])
        for each in [*results.settings.values()][::-1]
        for line, runs in each.runs.items()
    }
    rows = []
    for line in [*results.lines, *(line for line in of_lines if line not in results.lines)]:
        each, settings = of_lines[line]
        kind = STRATEGIES.get(settings["strategy"])
        words = (inspect.getdoc(kind) or "-").partition("\n")[0] if kind else "-"
        own = [
            f"{key} {settings[key]}"
            for key in _OF_A_LINE
            if settings.get(key, defaults[key]) != defaults[key]
        ]
        if line == each.ceiling:
            words, own = "Every client sends in each round: the ceiling.", []
        who = "who sends" if each.only_the_chosen_train(line) else "others too"
        rows.append([line, words, ", ".join(own).replace('"', "") or "-", who])
    caption = "Parameters are those of the first setting where they depend on the clients."
    headings = ["rule", "what it does", "its settings", "who trains"]
    table = Sheet("rules-table", "Rules", caption, headings, rows)
    return Section("rules", "The rules", "The rules", [table])


def _made(results: BoardResults) -> Section:
    settings = [*results.settings.values()]
    seeds = sorted({len(runs) for each in settings for runs in each.runs.values()})
    releases = {
        f"{name} {version}"
        for each in settings
        for run in each.results.runs
        for name, version in run.summary["versions"].items()
    }
    texts = [
        f"**Seeds:** {' or '.join(map(str, seeds))} for each rule; each has its own partition, "
        "initial weights and draws, the same for all rules. With so few, look at differences of "
        "more than a point or two.",
        "**Learning rates:** every rule of a setting had the same treatment, which its section "
        "names. One rate for all favours none on purpose, but need not be any rule's best.",
        '**Accuracy** is that of the test examples; "at the end" the mean of the last '
        f"{LAST} rounds. **Bytes** are those of record contents, before the choice and after, "
        "without framing. **Time** is simulated, and nothing that the simulation itself took.",
        f"**Made with** {', '.join(sorted(releases))}.",
    ]
    parts: list[Part] = [Items(texts)]
    if results.about.command:
        again = "The same command makes it again, and goes on where it stopped:"
        parts += [Words(again), Command(results.about.command)]
    parts.append(
        Words(
            "`pncs report FOLDER/SETTING` writes a page on one setting, with curves and paired "
            f"tests; `{NUMBERS}` has the numbers of this one."
        )
    )
    return Section("made", "How it was made", "How it was made", parts)


def _write_numbers(path: Path, results: BoardResults) -> None:
    rows: list[Sequence[object]] = []
    for key, each in results.settings.items():
        for line, runs in each.runs.items():
            _, half = mean_interval(np.array([run.converged for run in runs]))
            reached = [each.to_target(line, spent) for spent in (ROUNDS, TIME, BYTES, TRAININGS)]
            took = [r.median if r and np.isfinite(r.median) else None for r in reached]
            own = [each.ends[line], float(half), each.behind(line), _place(each, line)]
            rows.append([key, line, len(runs), *own, each.target, *took, each.training(line)])
    headings = (
        "setting,rule,seeds,at the end,half of the interval,below all,place,target,rounds,"
        "simulated seconds,bytes,trainings,train in a round"
    )
    write_csv(path, headings, rows)


def _p(p: float) -> str:
    return f"= {p:.3f}" if p >= 0.001 else "< 0.001"
