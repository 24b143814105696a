"""What a run says of itself while it runs, and what it says when it is asked for what it lacks."""

import copy

import pytest
from apps import numpy_app
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg

from pncs_flower.clients import summary_mod
from pncs_flower.protocol import MARKER
from pncs_flower.simulations.run.in_process import InProcessGrid
from pncs_flower.strategies import PNCS, RoundRecord, RoundRobin, SelectionStrategy, rules


@pytest.fixture
def log(caplog):
    caplog.set_level("INFO", logger="flwr")
    return lambda part: [r.getMessage() for r in caplog.records if part in r.getMessage()]


def run(strategy, clients=5, mods=(summary_mod,), rounds=3):
    grid = InProcessGrid(numpy_app.make_app(*mods), clients)
    strategy.start(grid, numpy_app.initial_arrays(), num_rounds=rounds)
    return strategy


def test_each_round_has_a_line_that_says_who_was_chosen(log):
    history = run(PNCS(FedAvg(), num_selected=2, queue_length=2)).history
    lines = log("chosen ")
    assert len(lines) == 3
    for record, line in zip(history, lines, strict=True):
        assert f"Round {record.round}: chosen {', '.join(record.chosen)}; " in line
        assert f"{len(record.answered)} of {len(record.asked)} asked answered" in line
        assert line.endswith("2 of 2 chosen delivered")


def test_the_line_counts_those_that_failed(log):
    def fails(message, context, call_next):
        marker = message.content.config_records.get(MARKER, {})
        if marker.get("phase") == "train" and context.node_config["partition-id"] == 0:
            raise RuntimeError("no")
        return call_next(message, context)

    run(
        RoundRobin(FedAvg(), num_selected=3, seed=0), clients=4, mods=(fails, summary_mod), rounds=1
    )
    (line,) = log("chosen ")
    assert "Round 1: chosen 0, 1, 3; 2 of 3 chosen delivered; 1 rejected (client " in line


def test_the_line_of_many_clients_is_no_longer_than_a_line():
    many = [str(number) for number in range(1000)]
    line = RoundRecord(7, asked=many, answered=many, chosen=many, delivered=many).line()
    assert "and 980 more; 1000 of 1000 asked answered" in line
    assert len(line) < 200


@pytest.mark.parametrize(("clients", "times"), [(2, 1), (3, 0)])
def test_a_rule_that_has_nothing_to_choose_says_so_once(log, clients, times):
    run(PNCS(FedAvg(), num_selected=2, queue_length=0), clients)
    told = log("there is nothing to choose")
    assert len(told) == times
    assert all("num_selected is 2 and 2 clients take part" in line for line in told)


@pytest.mark.parametrize(("candidates", "times"), [(4, 0), (5, 0), (6, 1)])
def test_more_candidates_than_clients_are_told_of_once(log, candidates, times):
    run(PNCS(FedAvg(), num_selected=2, candidates=candidates, queue_length=0), clients=5)
    told = log("candidates is ")
    assert len(told) == times
    assert all("candidates is 6 and 5 clients take part, so all" in line for line in told)


class Saving(FedAvg):
    def set_save_path(self, path):
        self.path = path


def test_an_attribute_of_the_base_is_found_with_the_help_of_the_error():
    strategy = PNCS(Saving())
    with pytest.raises(AttributeError, match=r"'PNCS' .* Saving has: use strategy\.base\.set_save"):
        strategy.set_save_path("there")
    outer = PNCS(DifferentialPrivacyServerSideFixedClipping(Saving(), 1.0, 1.0, 2))
    with pytest.raises(AttributeError, match=r"use strategy\.base\.strategy\.set_save_path"):
        outer.set_save_path("there")


def test_an_attribute_that_nobody_has_is_missing_as_ever():
    strategy = PNCS(Saving())
    assert not hasattr(strategy, "nothing")
    with pytest.raises(AttributeError, match=r"'PNCS' object has no attribute 'nothing'$"):
        _ = strategy.nothing
    assert copy.copy(strategy).rule == strategy.rule
    with pytest.raises(AttributeError):
        PNCS.__new__(PNCS).rule  # noqa: B018 - nothing is set yet, and nothing is asked for ever


def test_a_base_with_a_loop_of_its_own_is_told_where_its_steps_belong(log):
    class Looping(FedAvg):
        def start(self, *arguments, **options):
            return super().start(*arguments, **options)

    PNCS(Looping())
    (line,) = log("has a start() of its own")
    assert "evaluate_fn=" in line
    assert "should_stop=" in line


def test_every_rule_can_be_had_without_its_strategy():
    kinds = [strategy.rule_type for strategy in rules.STRATEGIES.values()]
    assert all(getattr(rules, kind.__name__) is kind for kind in kinds)
    assert all(kind.__name__.endswith("Rule") for kind in kinds)
    strategy = SelectionStrategy(FedAvg(), rules.PNCSRule(num_selected=2), queue_length=2)
    assert [r.chosen for r in run(strategy).history] == [
        r.chosen for r in run(PNCS(FedAvg(), num_selected=2, queue_length=2)).history
    ]


def test_for_how_long_clients_rest_is_told_where_it_follows_from_their_number(log):
    strategy = PNCS(FedAvg(), num_selected=2)
    strategy.summary()
    run(strategy, clients=7)
    assert log("Age-of-Update queue: as long as leaves a choice")
    assert len(log("With 7 clients, each that is chosen rests for 2 rounds: as long")) == 1
    assert [record.rest_rounds for record in strategy.history] == [2, 2, 2]


@pytest.mark.parametrize(("queue", "times"), [(0, 0), (1, 1), (2, 1), (3, 0), (6, 0)])
def test_a_queue_in_which_nobody_rests_is_told_of_once(log, queue, times):
    strategy = run(RoundRobin(FedAvg(), num_selected=3, queue_length=queue), clients=9)
    told = log("nobody ever rests")
    assert len(told) == times
    assert all("queue_length=None: of 9 clients, for 1 round" in text for text in told)
    assert {record.rest_rounds for record in strategy.history} == {queue // 3}
    assert any(record.cooling for record in strategy.history) == (queue >= 3)


def test_a_round_in_vain_is_a_warning_with_a_reason(caplog):
    caplog.set_level("INFO", logger="flwr")
    run(RoundRobin(FedAvg(), num_selected=2, max_weight=0.5), rounds=2)
    lines = [record for record in caplog.records if ": chosen " in record.getMessage()]
    assert [record.levelname for record in lines] == ["WARNING"] * 2
    assert all("at most 0.5, the strategy" in record.getMessage() for record in lines)


def test_a_smaller_sketch_is_not_advised_where_the_updates_are_what_costs(log):
    run(PNCS(FedAvg(), num_selected=3, queue_length=0), clients=3, rounds=1)
    assert log("of what the updates of all (3 clients) would take")
    assert not log("A smaller sketch")
