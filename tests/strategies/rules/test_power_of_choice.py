"""Power-of-Choice: candidates by size, the highest losses of them, and well-known faults."""

import math
from collections import Counter

import numpy as np
import pytest
from rounds import make_round

from pncs_flower.protocol import SummaryRequest
from pncs_flower.strategies.rules.power_of_choice import PowerOfChoiceRule


def told(losses: dict[str, float]) -> dict:
    return {
        client: {"loss": np.array([loss]), "num-examples": np.array([1.0])}
        for client, loss in losses.items()
    }


def test_candidates_are_drawn_by_size() -> None:
    num_examples = {"0": 1.0, "1": 2.0, "2": 3.0, "3": 10.0}
    rule, rounds = PowerOfChoiceRule(num_selected=1, num_candidates=1), 4000
    counts = Counter(
        rule.candidates({}, make_round(number, "0123", 1, num_examples=num_examples))[0]
        for number in range(1, rounds + 1)
    )
    expected = {client: rounds * size / 16 for client, size in num_examples.items()}
    # Chi-squared with 3 degrees of freedom; 1% point.
    assert sum((counts[c] - e) ** 2 / e for c, e in expected.items()) < 11.34


def test_pairs_of_candidates_are_drawn_without_replacement() -> None:
    num_examples = {"0": 1.0, "1": 2.0, "2": 5.0}
    rule, rounds = PowerOfChoiceRule(num_selected=2, num_candidates=2), 4000
    counts = Counter(
        frozenset(rule.candidates({}, make_round(number, "012", 2, num_examples=num_examples)))
        for number in range(1, rounds + 1)
    )
    # P{a, b} = a/8 b/(8-a) + b/8 a/(8-b)
    expected = {
        frozenset((a, b)): rounds
        * num_examples[a]
        * num_examples[b]
        / 8
        * (1 / (8 - num_examples[a]) + 1 / (8 - num_examples[b]))
        for a, b in (("0", "1"), ("0", "2"), ("1", "2"))
    }
    assert sum(expected.values()) == pytest.approx(rounds)
    # Chi-squared with 2 degrees of freedom; 1% point.
    assert sum((counts[pair] - e) ** 2 / e for pair, e in expected.items()) < 9.21


def test_highest_losses_are_chosen_whatever_the_positions_of_candidates() -> None:
    # An index into the candidates is no index into the clients.
    rule = PowerOfChoiceRule(num_selected=2, num_candidates=3)
    losses = told({"9": 0.1, "4": 3.0, "7": 2.0})
    choice = rule.select({"losses": {}}, make_round(1, ["1", "9", "4", "7"], 2), losses)
    assert set(choice.clients) == {"4", "7"}


def test_equal_losses_go_to_those_that_wait_longest() -> None:
    rule = PowerOfChoiceRule(num_selected=2, num_candidates=4)
    losses = told(dict.fromkeys("0123", 1.0))
    assert rule.select({}, make_round(1, "2013", 2), losses).clients == ("2", "0")


def test_as_many_candidates_as_clients_is_greedy() -> None:
    rule = PowerOfChoiceRule(num_selected=2, num_candidates=50)
    now = make_round(1, "01234", 2)
    assert set(rule.candidates({}, now)) == set("01234")


@pytest.mark.parametrize(
    ("variant", "request_"),
    [
        ("pow-d", SummaryRequest("loss")),
        ("cpow-d", SummaryRequest("loss", max_examples=16)),
        ("rpow-d", None),
    ],
)
def test_what_each_variant_asks_for(variant, request_) -> None:
    assert PowerOfChoiceRule(variant=variant, batch_size=16).request == request_


def test_reported_losses_decide_and_the_unknown_come_first() -> None:
    rule = PowerOfChoiceRule(num_selected=2, num_candidates=4, variant="rpow-d")
    now = make_round(3, "0123", 2)
    state = rule.observe(
        {"losses": {"2": 9.0}},
        now,
        {client: {"train-loss": loss} for client, loss in {"0": 1.0, "1": 5.0, "2": 2.0}.items()},
    )
    assert state == {"losses": {"0": 1.0, "1": 5.0, "2": 2.0}}
    assert rule.select(state, now, {}).clients == ("3", "1")


def test_only_candidates_can_be_chosen_by_reported_losses() -> None:
    rule = PowerOfChoiceRule(num_selected=1, num_candidates=2, variant="rpow-d")
    state = {"losses": {str(k): float(k) for k in range(6)}}
    for number in range(1, 50):
        now = make_round(number, "012345", 1)
        drawn = rule.candidates(state, now)
        assert rule.select(state, now, {}).clients == (max(drawn),)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_selected": 3, "num_candidates": 2}, "candidates is 2, but 3 .* at least 3"),
        ({"variant": "apow-d"}, "variant is 'apow-d'"),
        ({"batch_size": 0}, "batch_size is 0"),
    ],
)
def test_wrong_option_is_refused(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PowerOfChoiceRule(**options)


def test_loss_of_a_client_never_chosen_is_infinite_not_nan() -> None:
    rule = PowerOfChoiceRule(num_selected=3, num_candidates=3, variant="rpow-d")
    state = {"losses": {"1": math.nextafter(math.inf, 0)}}
    assert rule.select(state, make_round(1, "012", 3), {}).clients == ("0", "2", "1")
