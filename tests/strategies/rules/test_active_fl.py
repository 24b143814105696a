"""ActiveFL against the paper's formulas, and the faults found in other implementations."""

import math
from collections import Counter

import numpy as np
import pytest
from rounds import make_round

from pncs_flower.strategies import Choice
from pncs_flower.strategies.rules.active_fl import ActiveFLRule

TEN = [str(k) for k in range(10)]


def with_valuations(values: dict[str, float]) -> dict:
    return {"valuations": values}


def choose(rule: ActiveFLRule, state: dict, number: int, clients: list[str] = TEN) -> Choice:
    return rule.select(state, make_round(number, clients, rule.num_selected), {})


def test_valuation_is_the_sum_of_losses_over_the_root_of_the_size() -> None:
    losses = [0.5, 1.5, 4.0, 2.0]  # of the four examples of one client
    reported = {"3": {"train-loss": np.mean(losses), "num-examples": 4.0}}
    rule = ActiveFLRule()
    state = rule.observe(rule.initial_state(), make_round(1, TEN, 2), reported)
    assert state["valuations"]["3"] == pytest.approx(sum(losses) / math.sqrt(4), rel=1e-15)


def test_valuation_stays_until_the_next_participation() -> None:
    rule = ActiveFLRule()
    state = with_valuations({"1": 7.0, "2": 5.0})
    after = rule.observe(state, make_round(2, TEN, 2), {"1": {"train-loss": 1.0}})
    assert after["valuations"] == {"1": 1.0, "2": 5.0}


def test_three_quarters_are_suppressed_and_never_drawn_by_valuation() -> None:
    # Of ten, floor(7.5) = 7 are suppressed: 7, 8 and 9 are left.
    rule = ActiveFLRule(num_selected=3, uniform_share=0.0)
    state = with_valuations({str(k): float(k) for k in range(10)})
    for number in range(1, 200):
        assert set(choose(rule, state, number).clients) == {"7", "8", "9"}


def test_draws_follow_the_softmax() -> None:
    # One of the three that are kept, with probability proportional to exp(v / 2).
    rule = ActiveFLRule(num_selected=1, sharpness=0.5)
    state = with_valuations({str(k): float(k) for k in range(10)})
    rounds = 3000
    counts = Counter(choose(rule, state, number).clients[0] for number in range(1, rounds + 1))
    weights = np.exp(0.5 * np.array([7.0, 8.0, 9.0]))
    expected = rounds * weights / weights.sum()
    seen = np.array([counts[k] for k in ("7", "8", "9")])
    # Chi-squared with 2 degrees of freedom; 1% point.
    assert ((seen - expected) ** 2 / expected).sum() < 9.21


@pytest.mark.parametrize(
    ("size", "share", "by_value"),
    [(2, 0.1, 2), (5, 0.1, 5), (6, 0.1, 5), (4, 0.5, 2), (3, 0.5, 2), (2, 1.0, 0)],
)
def test_share_of_the_draws_by_valuation(size: int, share: float, by_value: int) -> None:
    # The valuations of the first `size` are so high that the softmax part takes them for sure.
    rule = ActiveFLRule(num_selected=size, uniform_share=share, suppressed_share=0.0, sharpness=1.0)
    clients = [str(k) for k in range(200)]
    state = with_valuations({str(k): 1e6 if k < size else 0.0 for k in range(200)})
    high = {str(k) for k in range(size)}
    least = min(
        len(high & set(choose(rule, state, number, clients).clients)) for number in range(1, 60)
    )
    assert least == by_value


def test_uniform_part_draws_from_all_that_are_left() -> None:
    # One by valuation, client 9 for sure, and one uniformly from the nine others.
    rule = ActiveFLRule(num_selected=2, uniform_share=0.5, sharpness=1.0)
    state = with_valuations({str(k): 1e6 if k == 9 else float(k) for k in range(10)})
    rounds = 2700
    counts: Counter[str] = Counter()
    for number in range(1, rounds + 1):
        counts.update(set(choose(rule, state, number).clients) - {"9"})
    expected = rounds / 9
    # Chi-squared with 8 degrees of freedom; 1% point.
    assert sum((counts[str(k)] - expected) ** 2 / expected for k in range(9)) < 20.09


def test_without_valuations_all_are_drawn_uniformly() -> None:
    rule = ActiveFLRule(num_selected=2)
    drawn = Counter(
        c for number in range(1, 400) for c in choose(rule, {"valuations": {}}, number).clients
    )
    assert set(drawn) == set(TEN)


def test_unseen_are_not_drawn_by_valuation() -> None:
    rule = ActiveFLRule(num_selected=2)
    state = with_valuations({"4": 1.0, "5": 2.0})
    for number in range(1, 100):
        assert set(choose(rule, state, number).clients) == {"4", "5"}


def test_unseen_first() -> None:
    rule = ActiveFLRule(num_selected=2, unseen="first")
    state = with_valuations({c: 1.0 for c in TEN if c not in ("3", "8")})
    assert set(choose(rule, state, 1).clients) == {"3", "8"}


def test_suppression_does_not_touch_the_valuations() -> None:
    rule = ActiveFLRule()
    values = {str(k): float(k) for k in range(10)}
    state = with_valuations(values)
    choice = choose(rule, state, 1)
    assert choice.state is None
    assert state["valuations"] == {str(k): float(k) for k in range(10)}


def test_large_valuations_do_not_overflow() -> None:
    rule = ActiveFLRule(num_selected=1, sharpness=1.0, suppressed_share=0.0)
    state = with_valuations({"0": 1e5, "1": 1e5 + 50, "2": -1e5})
    assert choose(rule, state, 1, ["0", "1", "2"]).clients == ("1",)


def test_absurd_losses_are_no_obstacle() -> None:
    rule = ActiveFLRule(num_selected=2, suppressed_share=0.0)
    absurd = {c: {"train-loss": 1e308, "num-examples": 1e9} for c in ("0", "1", "2")}
    state = rule.observe(rule.initial_state(), make_round(1, TEN, 2), absurd)
    assert len(set(choose(rule, state, 2).clients)) == 2


def test_tie_at_the_suppressed_border_goes_to_the_first_available() -> None:
    rule = ActiveFLRule(num_selected=1)
    clients = ["2", "0", "3", "1"]  # 2 has waited longest
    state = with_valuations(dict.fromkeys(clients, 1.0))
    assert {choose(rule, state, n, clients).clients for n in range(1, 50)} == {("2",)}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"suppressed_share": 1.5}, "suppressed_share is 1.5, but must be a share from 0 to 1"),
        ({"uniform_share": -0.1}, "uniform_share is -0.1"),
        ({"sharpness": math.inf}, "sharpness is inf"),
        ({"unseen": "last"}, "unseen is 'last'"),
    ],
)
def test_wrong_option_is_refused(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ActiveFLRule(**options)
