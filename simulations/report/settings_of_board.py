"""A board's settings: what was tried in each, and the table of how every rule did."""

from collections.abc import Sequence

import numpy as np

from pncs_flower.plain_text import counted

from ..board.results import TRAININGS, BoardResults, Standings
from ..sweep.progress import BYTES, ROUNDS, TIME, Reached, Spent
from ..sweep.sweep import short
from .document import Items, Part, Section, Sheet, Words
from .units import BYTES as BYTE_UNITS
from .units import ONES, SECONDS, Unit, readable
from .words_of_sweep import what_was_compared

_SMALLEST = 0.0005  # the least that three places show
_SPENT: dict[Spent, tuple[str, tuple[Unit, ...]]] = {
    ROUNDS: ("rounds", ONES),
    TIME: ("simulated time", SECONDS),
    BYTES: ("bytes", BYTE_UNITS),
    TRAININGS: ("trainings", ONES),
}


def how_to_read() -> Section:
    """Return what the columns of all settings' tables are."""
    texts = [
        "**At the end** is accuracy, its mean over seeds, ± half of the 95% interval; the best in "
        "bold. **Round** N is the mean accuracy after it.",
        "**To a target:** the target is nine tenths of what all clients reach at the end, or else "
        "of what the best rule does. The figure is the median over seeds of what it took until "
        "there: rounds, simulated time, bytes both ways of all clients, trainings of single "
        "clients (to evaluate, as some are asked to, is none). 29 (2 of 3): two of three seeds got "
        "there. Never (1 of 3): one of three did, so that the median did not.",
        "**Who takes part:** how many clients train in a round; how many were never chosen, the "
        "mean over seeds; how unequal the turns are, by Gini's coefficient (0: all alike); and the "
        "mean accuracy after the last round, each by its own labels, of the worst-served tenth of "
        "clients (of 10 clients: one).",
    ]
    title = "How to read these tables"
    return Section("read", title, title, [Items(texts)])


def settings(results: BoardResults) -> list[Section]:
    """Return a section for each setting."""
    return [_setting(key, each) for key, each in results.settings.items()]


def _setting(key: str, each: Standings) -> Section:
    rounds = [n for n in each.results.about.report.rounds if n <= len(each.first.rounds)]
    known = [spent for spent in _SPENT if any(each.to_target(line, spent) for line in each.runs)]
    headings = ["rule", "at the end", *(f"round {n}" for n in rounds)]
    headings += [f"{_SPENT[spent][0]} to {each.target:.2f}" for spent in known]
    headings += ["train in a round", "never chosen", "Gini of turns", "worst tenth"]
    headings += ["learning rate"] if each.results.about.tune else []
    lines = sorted(each.runs, key=lambda line: -each.ends[line])
    rows = [_row(each, line, rounds, known) for line in lines]
    parts: list[Part] = [Words(_facts(each)), Sheet(f"{key}-table", each.name, "", headings, rows)]
    return Section(key, each.name, each.name, parts)


def _facts(each: Standings) -> str:
    config = each.first.cell["settings"]
    tune = each.results.about.tune
    rate = (
        f"of {', '.join(map(short, tune.lr))} the best for each rule, by validation examples and "
        f"{counted(tune.seeds, 'other seed')}"
        if tune
        else f"{short(config['lr'])} for all"
    )
    size = config["batch-size"]
    step = f"batches of {size}" if size else "one step with all examples"
    compared = what_was_compared(each.results, each.first.summary["data"])
    about = f"{each.about} " if each.about else ""
    return (
        f"{about}{compared} Network: {config['model']}; "
        f"{counted(config['local-epochs'], 'local epoch')}, {step}; learning rate: {rate}."
    )


def _row(each: Standings, line: str, rounds: Sequence[int], known: Sequence[Spent]) -> list[str]:
    runs = each.runs[line]
    end = f"{each.ends[line]:.3f}{_plus_or_minus(each.half(line))}"
    found = [line, f"**{end}**" if line == each.best else end]
    found += [f"{np.mean([run.scores[n - 1] for run in runs]):.3f}" for n in rounds]
    for spent in known:
        reached = each.to_target(line, spent)
        found.append("-" if reached is None else _reached(reached, _SPENT[spent][1]))
    found.append(f"{each.training(line):.0f}")
    clients = ".0f" if len(runs) == 1 else ".1f"
    for name, form in (("never-chosen", clients), ("gini", ".2f"), ("worst-tenth-accuracy", ".3f")):
        values = [run.summary.get(name) for run in runs]
        there = [value for value in values if value is not None]
        found.append(f"{np.mean(there):{form}}" if there else "-")
    if each.results.about.tune:
        rates = {tuned.line: short(tuned.lr) for tuned in each.results.about.tuned}
        found.append(rates.get(line, "-"))
    return found


def _plus_or_minus(half: float) -> str:
    if not np.isfinite(half):
        return ""
    return f" ± {half:.3f}" if half >= _SMALLEST or half == 0 else f" ± <{_SMALLEST}"


def _reached(reached: Reached, units: tuple[Unit, ...]) -> str:
    if not np.isfinite(reached.median):
        return f"never ({reached.there} of {reached.seeds})" if reached.there else "never"
    there = "" if reached.there == reached.seeds else f" ({reached.there} of {reached.seeds})"
    return f"{readable(reached.median, units)}{there}"
