"""A round that was asked ahead is planned once, unless what it depends on has changed since."""

from collections.abc import Callable

import numpy as np
import pytest

from pncs_flower.strategies.round.open_round import Plan
from pncs_flower.strategies.round.selector import Selector
from pncs_flower.strategies.rules.gradient_memory import GradientMemoryRule

CLIENTS = [str(number) for number in range(8)]


def selector_after_a_round() -> Selector:
    selector = Selector(GradientMemoryRule(num_selected=2), 2, seed=4)
    selector.learn_sizes(dict.fromkeys(CLIENTS, 5.0))
    play(selector, selector.plan(1, CLIENTS))
    return selector


def play(selector: Selector, plan: Plan) -> None:
    answers = {client: {"fc": np.ones(3)} for client in plan.candidates}
    choice = selector.choose(plan, answers)
    selector.observe(plan, choice.clients, {c: {"num-examples": 5} for c in choice.clients})


def test_the_same_round_is_planned_once() -> None:
    selector = selector_after_a_round()
    plan = selector.plan(2, CLIENTS)
    selector.learn_sizes(dict.fromkeys(CLIENTS, 5.0))
    assert selector.plan(2, list(CLIENTS)) is plan


def selector_after_two_rounds() -> Selector:
    selector = selector_after_a_round()
    play(selector, selector.plan(2, CLIENTS))
    return selector


CHANGES: dict[str, Callable[[Selector], object]] = {
    "another size": lambda selector: selector.learn_sizes({"7": 90.0}),
    "a client less": lambda selector: selector.forget("6"),
    "a turn": lambda selector: selector.observe(selector.plan(2, CLIENTS), ["0"], {}),
    "another round": lambda selector: play(selector, selector.plan(2, CLIENTS)),
    "taken up": lambda selector: selector.restore(selector_after_two_rounds().state()),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_plan_is_of_what_is_known_when_the_round_opens(change: str) -> None:
    selector = selector_after_a_round()
    before = selector.plan(2, CLIENTS)
    CHANGES[change](selector)
    other = Selector(selector.rule, 2, seed=4)
    other.restore(selector.state())
    assert selector.plan(2, CLIENTS) == other.plan(2, CLIENTS) != before


def test_other_clients_and_other_rounds_have_other_plans() -> None:
    selector = selector_after_a_round()
    assert selector.plan(2, CLIENTS[:5]).now.clients == tuple(CLIENTS[:5])
    assert selector.plan(2, CLIENTS).now.clients == tuple(CLIENTS)
    assert selector.plan(3, CLIENTS).now.number == 3
