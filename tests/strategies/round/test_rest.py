"""How long the chosen rest where no length of the queue is given: as long as leaves a choice."""

import math
from collections.abc import Sequence

import pytest
from coming_and_going import Federation
from flwr.serverapp.strategy import FedAvg

from pncs_flower.strategies import PNCS, SketchedMean
from pncs_flower.strategies.round.open_round import Plan
from pncs_flower.strategies.round.selector import Selector
from pncs_flower.strategies.rules import RoundRobinRule


def rounds(selector: Selector, numbers: Sequence[int], start: int = 1) -> list[Plan]:
    """Play rounds with so many clients each, all of which deliver, and return the plans."""
    plans = []
    for number, num_clients in enumerate(numbers, start):
        plan = selector.plan(number, [str(client) for client in range(num_clients)])
        choice = selector.choose(plan, {})
        selector.observe(plan, choice.clients, {c: {"num-examples": 1} for c in choice.clients})
        plans.append(plan)
    return plans


@pytest.mark.parametrize(
    ("num_clients", "num_selected", "rest"),
    [(10, 2, 3), (100, 10, 8), (10, 4, 1), (3, 2, 0), (2, 2, 0), (2, 3, 0), (7, 1, 5)],
)
def test_with_as_many_clients_in_each_round(num_clients: int, num_selected: int, rest: int) -> None:
    *_, plan = rounds(Selector(RoundRobinRule(num_selected), None, 0), [num_clients] * 12)
    assert plan.rest_rounds == rest
    assert len(plan.cooling) == rest * num_selected
    assert plan.released == ()


COME_AND_GO = [10, 10, 10, 10, 4, 5, 6, 14, 14, 14, 14, 14, 14, 9, 3, 2, 1, 10]
RESTS = [3, 3, 3, 3, 0, 1, 1, 5, 5, 5, 5, 5, 5, 3, 0, 0, 0, 3]


def test_with_more_and_fewer_clients_there_is_a_choice_in_every_round_that_has_one() -> None:
    plans = rounds(Selector(RoundRobinRule(2), None, 0), COME_AND_GO)
    assert [plan.rest_rounds for plan in plans] == RESTS
    for plan, there in zip(plans, COME_AND_GO, strict=True):
        assert len(plan.now.available) >= min(3, there)
        assert plan.released == ()


def test_a_selector_that_is_taken_up_goes_on_alike() -> None:
    whole, first, second = (Selector(RoundRobinRule(2), None, 0) for _ in range(3))
    plans = rounds(whole, COME_AND_GO)
    rounds(first, COME_AND_GO[:9])
    second.restore(first.state())
    assert rounds(second, COME_AND_GO[9:], start=10) == plans[9:]


def test_those_chosen_for_others_that_come_late_are_a_choice_too() -> None:
    *_, plan = rounds(Selector(RoundRobinRule(2), None, 0, extra=2), [10] * 8)
    assert plan.rest_rounds == 2  # with 3, four were left to choose four from
    assert plan.now.num_selected == 4


def away(number: int) -> range:
    return range(3, 9) if number in (4, 5) else range(8, 9 if number > 6 else 8)


def test_clients_that_fail_are_not_counted_and_plans_ahead_are_those_of_the_round() -> None:
    ahead, own = (
        Federation(9, away=away, fails=lambda client, number: client in (1, 5)).run(
            PNCS(FedAvg(fraction_evaluate=0.0), seed=3, ride_along=ride_along), 9
        )
        for ride_along in (True, False)
    )
    for record in ahead.history:
        there = len(record.clients) - len(record.backing_off)
        assert record.rest_rounds == max(0, math.ceil(there / 2) - 2)
        assert there - len(record.cooling) >= min(3, there)
        assert record.released == []
    assert len({record.rest_rounds for record in ahead.history}) > 2
    assert {record.pre_round for record in ahead.history} > {"ahead"}
    assert [(r.rest_rounds, r.cooling, r.chosen) for r in ahead.history] == [
        (r.rest_rounds, r.cooling, r.chosen) for r in own.history
    ]


def test_any_rule_takes_it_and_only_pncs_has_it_from_the_start() -> None:
    (record, *_) = Federation(7).run(SketchedMean(FedAvg(), queue_length=None), 1).history
    assert record.rest_rounds == 2
    assert SketchedMean(FedAvg()).options.queue_length == 0
    assert PNCS(FedAvg()).options.queue_length is None
    assert PNCS(FedAvg(), rest_rounds=4, queue_length=None).options.clients_in_queue(2) == 8
