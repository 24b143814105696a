"""What each line of a board is: its rule, the class to type, and who has to train for it."""

import inspect
from collections.abc import Mapping
from typing import Any

from pncs_flower.plain_text import counted
from pncs_flower.strategies.rule import parameters
from pncs_flower.strategies.rules import STRATEGIES

from ..board.results import BoardResults, Standings, asked_for, strategy_of
from ..sweep.cell import Run
from .document import Section, Sheet

_REST = ("queue-length", "rest-rounds")


def entries(results: BoardResults) -> str:
    """Return how many lines there are, and of how many rules: some are there more than once."""
    there = [runs[0] for s in results.settings.values() for runs in s.runs.values()]
    kinds = {run.cell["line"]: run.cell["settings"]["strategy"] for run in there}
    rules = {kinds[line] for line in results.lines}
    words = counted(len(results.lines), "entry", "entries")
    again = len(results.lines) - len(rules)
    if not again:
        return words
    return f"{words} ({counted(len(rules), 'rule')}, and {again} with another setting)"


def rules(results: BoardResults) -> Section:
    """Return what each line is, in the words of its documentation, and what it is made with."""
    of_lines: dict[str, list[Standings]] = {}
    for each in results.settings.values():
        for line in each.runs:
            of_lines.setdefault(line, []).append(each)
    rows = []
    for line in [*results.lines, *(line for line in of_lines if line not in results.lines)]:
        there = of_lines[line]
        if line == there[0].ceiling:
            does = "Every client that is there sends in each round: the reference."
            rows.append([line, does, "-", "-", "who sends"])
            continue
        run = there[0].runs[line][0]
        kind = STRATEGIES.get(run.cell["settings"]["strategy"])
        does = (inspect.getdoc(kind) or "-").partition("\n")[0] if kind else "-"
        rows.append([line, does, f"`{_call(run)}`", _rest(there, line), _who_trains(there, line)])
    caption = (
        "The class is that of `pncs_flower.strategies`, with what it is given here beside the base "
        "strategy and how many it selects; where that depends on the clients, in the first setting."
        " How many rounds a queue is depends on how many are selected."
    )
    headings = ["rule", "what it does", "class", "who rests", "who trains"]
    table = Sheet("rules-table", "Rules", caption, headings, rows, "sortable words")
    return Section("rules", "The rules", "The rules", [table])


def _call(run: Run) -> str:
    """Return how to make the strategy of a run, but for what all strategies are given."""
    name = run.cell["settings"]["strategy"]
    kind, strategy = STRATEGIES.get(name), strategy_of(run)
    given: dict[str, Any] = {
        known: value
        for known, field in parameters(type(strategy.rule)).items()
        if known != "num_selected"
        and (value := getattr(strategy.rule, field.name)) != field.default
        and isinstance(value, bool | int | float | str | tuple)
    }
    settings: Mapping[str, Any] = run.cell["settings"]
    if settings.get("combine"):
        given["combine"] = settings["combine"]
    for key in _REST:
        if settings.get(key, -1) >= 0:
            given[key.replace("-", "_")] = settings[key]
    shown = ", ".join(f"{key}={value!r}" for key, value in given.items()).replace("'", '"')
    called = kind.__name__ if kind else name.partition(":")[2]
    return f"{called}({shown})" if shown else called


def _rest(there: list[Standings], line: str) -> str:
    """Return for how long a client rests after its turn, where that is so."""
    queues = [each.queue(line) for each in there]
    first, *others = {queue.length for queue in queues}
    if not others and first == 0:
        return "-"
    rests = sorted({queue.rounds for queue in queues}, reverse=True)
    words = f"a rest of {_either(rests)} {'round' if rests == [1] else 'rounds'}"
    if not others:
        follows = "as long as leaves a choice"
        queue = follows if first is None else f"a queue of {counted(first, 'client')}"
        words = f"{queue}: {words}"
    if turning := sum(queue.is_rotation for queue in queues):
        words += f"; in {turning} of {counted(len(queues), 'setting')} nothing is left to choose"
    return words


def _who_trains(there: list[Standings], line: str) -> str:
    alone = [each for each in there if each.only_the_chosen_train(line)]
    if len(alone) == len(there):
        others = asked_for(there[0].runs[line][0]) == "loss"
        return "who sends; others evaluate" if others else "who sends"
    if not alone:
        return "others too"
    return f"others too; in {len(alone)} of {counted(len(there), 'setting')} who sends"


def _either(values: list[int]) -> str:
    *most, last = map(str, values)
    return f"{', '.join(most)} or {last}" if most else last
