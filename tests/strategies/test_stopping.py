"""A run that ends early: with every release of Flower, and after a restart too."""

import pytest
from apps import numpy_app
from flwr.app import ConfigRecord, MetricRecord
from flwr.serverapp.strategy import FedAvg, Result, Strategy

from pncs_flower.clients import summary_mod
from pncs_flower.simulations.run.in_process import InProcessGrid
from pncs_flower.strategies import PNCS


def newer_loop(
    self,
    grid,
    initial_arrays,
    num_rounds=3,
    timeout=3600,
    train_config=None,
    evaluate_config=None,
    evaluate_fn=None,
    should_stop=None,
    novelty=None,
):
    """Stands in for the loop of Flower 1.43, which asks after each round whether to stop."""
    assert novelty in (None, "given")
    newer_loop.calls += 1
    result, arrays = Result(), initial_arrays
    train_config, evaluate_config = (
        train_config or ConfigRecord(),
        evaluate_config or ConfigRecord(),
    )
    if evaluate_fn is not None and (metrics := evaluate_fn(0, arrays)) is not None:
        result.evaluate_metrics_serverapp[0] = metrics
    for number in range(1, num_rounds + 1):
        replies = exchange(grid, self.configure_train(number, arrays, train_config, grid))
        model, metrics = self.aggregate_train(number, replies)
        if model is not None:
            result.arrays = arrays = model
        if metrics is not None:
            result.train_metrics_clientapp[number] = metrics
        replies = exchange(grid, self.configure_evaluate(number, arrays, evaluate_config, grid))
        if (metrics := self.aggregate_evaluate(number, replies)) is not None:
            result.evaluate_metrics_clientapp[number] = metrics
        if evaluate_fn is not None and (metrics := evaluate_fn(number, arrays)) is not None:
            result.evaluate_metrics_serverapp[number] = metrics
        if should_stop is not None and should_stop(number, result):
            break
    return result


def exchange(grid, messages):
    return grid.pull_messages(grid.push_messages(messages))


@pytest.fixture(params=["installed", "newer"])
def flower(request, monkeypatch):
    """The loop of the installed Flower, and one that takes ``should_stop`` itself."""
    newer_loop.calls = 0
    if request.param == "newer":
        monkeypatch.setattr(Strategy, "start", newer_loop)
    yield request.param
    if request.param == "newer":
        assert newer_loop.calls


def strategy(**options):
    return PNCS(FedAvg(), num_selected=2, queue_length=2, seed=3, **options)


def start(strategy, num_rounds=6, **arguments):
    grid = InProcessGrid(numpy_app.make_app(summary_mod), 5)
    return strategy.start(grid, numpy_app.initial_arrays(), num_rounds, **arguments)


def count_rounds(number, arrays):
    return MetricRecord({"round": number})


def test_a_run_is_stopped_after_the_round_that_is_enough(flower):
    asked = []

    def enough(number, result):
        asked.append((number, len(result.arrays)))
        return number == 3

    stopped = strategy()
    result = start(stopped, evaluate_fn=count_rounds, should_stop=enough)
    assert asked == [(1, 4), (2, 4), (3, 4)]
    assert [record.round for record in stopped.history] == [1, 2, 3]
    whole = start(strategy(), 3, evaluate_fn=count_rounds)
    assert result.arrays == whole.arrays
    assert result.evaluate_metrics_serverapp[3] == MetricRecord({"round": 3})


def test_what_decides_sees_all_metrics(flower):
    seen = {}

    def enough(number, result):
        seen[number] = (
            list(result.train_metrics_clientapp),
            list(result.evaluate_metrics_clientapp),
            list(result.evaluate_metrics_serverapp),
        )
        return number == 2

    start(strategy(), evaluate_fn=count_rounds, should_stop=enough)
    assert seen == {1: ([1], [1], [0, 1]), 2: ([1, 2], [1, 2], [0, 1, 2])}


def test_a_run_without_evaluation_on_the_server_is_stopped_too(flower):
    stopped = strategy()
    result = start(stopped, should_stop=lambda number, result: number == 2)
    assert len(stopped.history) == 2
    assert result.arrays == start(strategy(), 2).arrays


def test_a_run_that_is_never_stopped_has_the_same_bits(flower):
    never = start(strategy(), should_stop=lambda number, result: False)
    assert never == start(strategy())


@pytest.mark.parametrize("first", [2, 4])
def test_after_a_restart_rounds_and_results_are_those_of_the_whole_run(flower, tmp_path, first):
    evaluated = []

    def evaluate(number, arrays):
        evaluated.append(number)
        return count_rounds(number, arrays)

    start(strategy(checkpoint=tmp_path), first, evaluate_fn=evaluate)
    seen = []

    def enough(number, result):
        seen.append((number, list(result.train_metrics_clientapp)))
        assert result.evaluate_metrics_serverapp[number] == MetricRecord({"round": number})
        return number == first + 1

    resumed = strategy(checkpoint=tmp_path)
    result = start(resumed, 9, evaluate_fn=evaluate, should_stop=enough)
    assert evaluated == list(range(first + 2))  # none twice
    assert seen == [(first + 1, list(range(1, first + 2)))]
    assert [record.round for record in resumed.history] == list(range(1, first + 2))
    assert result.arrays == start(strategy(), first + 1).arrays


def test_a_stopped_run_stays_stopped_when_it_is_started_again(flower, tmp_path, caplog):
    result = start(strategy(checkpoint=tmp_path), should_stop=lambda number, _: number == 3)
    again = strategy(checkpoint=tmp_path)
    caplog.set_level("INFO", logger="flwr")

    def never(number, result):
        raise AssertionError("the run is over")

    assert start(again, should_stop=never).arrays == result.arrays
    assert len(again.history) == 3
    assert "stopped early after round 3, and stays so" in caplog.text


def test_a_stopped_run_goes_on_without_what_stopped_it(flower, tmp_path):
    start(strategy(checkpoint=tmp_path), should_stop=lambda number, _: number == 3)
    on = strategy(checkpoint=tmp_path)
    assert start(on).arrays == start(strategy()).arrays
    assert len(on.history) == 6


def test_further_arguments_reach_a_flower_that_has_them(monkeypatch):
    newer_loop.calls = 0
    monkeypatch.setattr(Strategy, "start", newer_loop)
    start(strategy(), 1, novelty="given")
    assert newer_loop.calls == 1


def test_an_argument_that_the_installed_flower_lacks_is_named():
    from importlib.metadata import version

    with pytest.raises(TypeError, match=rf"'novelty', which Flower {version('flwr')}.*evaluate_fn"):
        start(strategy(), 1, novelty="given")


@pytest.mark.parametrize("wrong", [True, 3, "soon", object()])
def test_what_cannot_be_asked_whether_to_stop_is_refused(wrong):
    with pytest.raises(TypeError, match=r"should_stop is .*must be callable"):
        start(strategy(), 1, should_stop=wrong)
