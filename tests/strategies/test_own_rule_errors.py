"""What can go wrong in a rule of one's own: the error names the rule and the round."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from apps import numpy_app
from flwr.serverapp.strategy import FedAvg

from pncs_flower.clients import summary_mod
from pncs_flower.protocol import SummaryRequest
from pncs_flower.simulations.in_process import InProcessGrid
from pncs_flower.strategies import Choice, SelectionError, SelectionRule, SelectionStrategy

ASK = SummaryRequest("update", "layers")


class Plain(SelectionRule):
    """No dataclass: what it does is given as functions."""

    def __init__(self, request: Any = None, **functions: Callable[..., Any]) -> None:
        self.num_selected = 2
        self._request, self._functions = request, functions

    request = property(lambda self: self._request)

    def candidates(self, state, now):
        return self._functions.get("candidates", lambda now: now.available)(now)

    def select(self, state, now, summaries):
        first = Choice(now.available[: now.num_selected])
        return self._functions.get("select", lambda now, summaries: first)(now, summaries)

    def observe(self, state, now, delivered):
        return self._functions.get("observe", lambda now: {})(now)


def start(rule: SelectionRule, rounds: int = 2, **options: Any) -> SelectionStrategy:
    strategy = SelectionStrategy(FedAvg(fraction_evaluate=0.0), rule, **options)
    grid = InProcessGrid(numpy_app.make_app(summary_mod), 4)
    strategy.start(grid, numpy_app.initial_arrays(), num_rounds=rounds)
    return strategy


FAULTS = {
    "select raises": (
        Plain(select=lambda now, summaries: {}["zz"]),
        SelectionError,
        r"select of the rule Plain\(.*raised KeyError in round 1: 'zz'",
    ),
    "select stops": (
        Plain(select=lambda now, summaries: next(iter(()))),
        SelectionError,
        r"select of the rule Plain\(.*raised StopIteration in round 1",
    ),
    "no Choice": (Plain(select=lambda now, summaries: ("0", "1")), TypeError, "want a Choice"),
    "NaN": (
        Plain(select=lambda now, summaries: Choice(now.available[:2], math.nan)),
        ValueError,
        "mean_similarity nan in round 1",
    ),
    "asks None": (
        Plain(ASK, candidates=lambda now: None),
        SelectionError,
        "candidates of the rule .* raised TypeError",
    ),
    "asks strangers": (Plain(ASK, candidates=lambda now: ["zz"]), ValueError, r"asks \['zz'\]"),
    "asks twice": (Plain(ASK, candidates=lambda now: ["0", "0"]), ValueError, "different clients"),
    "observe gives None": (Plain(observe=lambda now: None), TypeError, "want a mapping"),
    "request is text": (Plain("update"), TypeError, "request of the rule .* want a SummaryRequest"),
    "writes to summaries": (
        Plain(ASK, select=lambda now, summaries: summaries["0"]["head"].fill(0)),
        ValueError,
        "read-only",
    ),
}


@pytest.mark.parametrize(("rule", "error", "message"), FAULTS.values(), ids=FAULTS)
def test_faults(rule: SelectionRule, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        start(rule)


def test_a_class_or_nothing_is_no_rule() -> None:
    with pytest.raises(TypeError, match=r"rule is the class Plain: make one of it, Plain\(...\)"):
        SelectionStrategy(FedAvg(), Plain)
    with pytest.raises(TypeError, match="rule is None"):
        SelectionStrategy(FedAvg(), None)


def test_a_summary_of_no_kind() -> None:
    with pytest.raises(ValueError, match=r"kind 'gradients' .* update"):
        SummaryRequest("gradients")


def test_a_mean_similarity_of_numpy_goes_into_the_record(tmp_path) -> None:
    rule = Plain(select=lambda now, summaries: Choice(now.available[:2], np.float32(0.5), np.True_))
    strategy = start(rule, history_path=tmp_path / "history.jsonl")
    assert strategy.history[0].mean_similarity == 0.5
    assert strategy.history[0].optimal is True


class Numbered(SelectionRule):
    """Neither a dataclass nor with functions in it: the text of it is the same everywhere."""

    def __init__(self, num_selected: int) -> None:
        self.num_selected = num_selected

    def select(self, state, now, summaries):
        return Choice(now.available[: now.num_selected])


def test_a_rule_that_is_no_dataclass_is_resumed(tmp_path) -> None:
    start(Numbered(2), checkpoint=tmp_path)
    resumed = start(Numbered(2), rounds=3, checkpoint=tmp_path)
    assert [record.rule for record in resumed.history] == ["Numbered(num_selected=2)"] * 3
