"""What can go wrong in a rule of one's own: the error names the rule and the round."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from apps import numpy_app
from flwr.serverapp.exception import AggregationError
from flwr.serverapp.strategy import FedAvg

from pncs_flower.clients import summary_mod
from pncs_flower.protocol import SummaryRequest
from pncs_flower.simulations.run.in_process import InProcessGrid
from pncs_flower.strategies import (
    Choice,
    EmptyRoundsError,
    RoundRobin,
    SelectionError,
    SelectionRule,
    SelectionStrategy,
)

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
    "chance 0": (
        Plain(select=lambda now, summaries: Choice(("0", "1"), chances={"0": 0.5, "1": 0.0})),
        ValueError,
        r"chances {'0': 0.5, '1': 0.0} in round 1, but must give one above 0",
    ),
    "chance NaN": (
        Plain(select=lambda now, summaries: Choice(("0", "1"), chances={"0": 0.5, "1": math.nan})),
        ValueError,
        "chances .* at most 1 for each chosen client",
    ),
    "chance above 1": (
        Plain(select=lambda now, summaries: Choice(("0", "1"), chances={"0": 0.5, "1": 1.1})),
        ValueError,
        "chances .* at most 1 for each chosen client",
    ),
    "chance missing": (
        Plain(select=lambda now, summaries: Choice(("0", "1"), chances={"0": 0.5})),
        ValueError,
        "chances .* at most 1 for each chosen client",
    ),
    "chances by layer": (
        Plain(
            select=lambda now, summaries: Choice(
                ("0", "1"), by_layer={"head": ("0", "1")}, chances={"0": 0.5, "1": 0.5}
            )
        ),
        ValueError,
        "chances .* none in a choice by layer",
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
        SelectionError,
        r"select of the rule Plain\(.*raised ValueError in round 1: .*read-only",
    ),
    "NumPy raises in select": (
        Plain(ASK, select=lambda now, summaries: np.zeros(3) + np.zeros(2)),
        SelectionError,
        r"select of the rule Plain\(.*raised ValueError in round 1: operands could not be",
    ),
    "NumPy raises in candidates": (
        Plain(ASK, candidates=lambda now: np.stack([])),
        SelectionError,
        r"candidates of the rule Plain\(.*raised ValueError in round 1: need at least one array",
    ),
    "NumPy raises in observe": (
        Plain(observe=lambda now: np.zeros((2, 2)) @ np.zeros(3)),
        SelectionError,
        r"observe of the rule Plain\(.*raised ValueError in round 1: matmul",
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


def test_the_error_of_a_rule_keeps_and_logs_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    rule = Plain(select=lambda now, summaries: np.zeros(3) + np.zeros(2))
    with pytest.raises(SelectionError) as caught:
        start(rule)
    assert isinstance(caught.value.__cause__, ValueError)
    (told,) = [record for record in caplog.records if record.exc_info]
    assert told.exc_info[1] is caught.value.__cause__


class Faulty(FedAvg):
    """A base strategy of one's own that raises in one of its functions, in round 2."""

    def __init__(self, function: str, error: Exception) -> None:
        super().__init__()
        self._function, self._error = function, error

    def _reach(self, function: str, number: int) -> None:
        if (function, number) == (self._function, 2):
            raise self._error

    def configure_train(self, server_round, arrays, config, grid):
        self._reach("configure_train", server_round)
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round, replies):
        self._reach("aggregate_train", server_round)
        return super().aggregate_train(server_round, replies)

    def configure_evaluate(self, server_round, arrays, config, grid):
        self._reach("configure_evaluate", server_round)
        return super().configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(self, server_round, replies):
        self._reach("aggregate_evaluate", server_round)
        return super().aggregate_evaluate(server_round, replies)


OF_THE_BASE = ["configure_train", "aggregate_train", "configure_evaluate", "aggregate_evaluate"]


def run_base(base: FedAvg, rule: SelectionRule) -> None:
    grid = InProcessGrid(numpy_app.make_app(summary_mod), 4)
    SelectionStrategy(base, rule).start(grid, numpy_app.initial_arrays(), num_rounds=2)


@pytest.mark.parametrize("request_", [None, ASK], ids=["asks nobody", "asks"])
@pytest.mark.parametrize("function", OF_THE_BASE)
def test_an_error_of_the_base_strategy_names_it_and_the_round(function, request_, caplog) -> None:
    error = ValueError("operands could not be broadcast together")
    with pytest.raises(
        SelectionError,
        match=rf"^{function} of the base strategy Faulty raised ValueError in round 2: operands",
    ) as caught:
        run_base(Faulty(function, error), Plain(request_))
    assert caught.value.__cause__ is error
    assert any(record.exc_info and record.exc_info[1] is error for record in caplog.records)


@pytest.mark.parametrize("function", OF_THE_BASE)
@pytest.mark.parametrize(
    "error",
    [AggregationError("of Flower"), EmptyRoundsError("of this library")],
    ids=lambda error: type(error).__name__,
)
def test_an_error_that_tells_whose_it_is_passes_as_it_is(function, error) -> None:
    with pytest.raises(type(error)) as caught:
        run_base(Faulty(function, error), Plain())
    assert caught.value is error


@pytest.mark.parametrize("name", ["evaluate_fn", "should_stop"])
@pytest.mark.parametrize("resumed", [False, True])
def test_an_error_of_the_apps_own_function_passes_as_it_is_and_says_in_which_round(
    name: str, resumed: bool, tmp_path
) -> None:
    def broken(number: int, given: Any) -> None:
        if number == 3:
            raise KeyError("zz")

    def run(rounds: int, **functions: Any) -> None:
        strategy = RoundRobin(FedAvg(fraction_evaluate=0.0), checkpoint=tmp_path)
        grid = InProcessGrid(numpy_app.make_app(summary_mod), 4)
        strategy.start(grid, numpy_app.initial_arrays(), num_rounds=rounds, **functions)

    if resumed:
        run(2)
    with pytest.raises(KeyError) as raised:
        run(4, **{name: broken})
    assert raised.value.__notes__ == [f"raised by {name} in round 3"]
