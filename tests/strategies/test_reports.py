"""Reading reports and drawing by weight, against the chances computed directly."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rounds import make_round

from pncs_flower.strategies import SelectionError
from pncs_flower.strategies.reports import draw, reported, round_down, round_half_up, sizes
from pncs_flower.strategies.rules.active_fl import ActiveFLRule
from pncs_flower.strategies.rules.oort import OortRule
from pncs_flower.strategies.rules.power_of_choice import PowerOfChoiceRule


def chance_of(order: tuple[int, ...], weights: list[float]) -> float:
    """Return the chance of an order of draws without replacement."""
    left, chance = sum(weights), 1.0
    for index in order:
        chance *= weights[index] / left
        left -= weights[index]
    return chance


def test_draw_follows_the_weights_without_replacement() -> None:
    weights, draws = [1.0, 2.0, 5.0, 3.0], 6000
    orders = list(itertools.permutations(range(4), 2))
    expected = np.array([chance_of(order, weights) for order in orders]) * draws
    log_weights = {str(k): math.log(w) for k, w in enumerate(weights)}
    rng = np.random.default_rng(0)
    seen = [draw(log_weights, 2, rng) for _ in range(draws)]
    counts = np.array([seen.count((str(a), str(b))) for a, b in orders])
    # Chi-squared with 11 degrees of freedom; 1% point.
    assert ((counts - expected) ** 2 / expected).sum() < 24.72


def test_weight_of_zero_is_never_drawn() -> None:
    rng = np.random.default_rng(0)
    assert draw({"0": -math.inf, "1": 0.0, "2": -math.inf}, 3, rng) == ("1",)


@given(
    st.dictionaries(st.integers(0, 50).map(str), st.floats(-1e300, 1e300), min_size=1),
    st.integers(0, 60),
)
def test_draw_is_of_distinct_clients_at_any_scale(weights: dict[str, float], count: int) -> None:
    drawn = draw(weights, count, np.random.default_rng(1))
    assert len(set(drawn)) == len(drawn) == min(count, len(weights))


def test_order_of_clients_does_not_matter() -> None:
    weights = {str(k): float(k) for k in range(12)}
    backwards = dict(reversed(weights.items()))
    assert draw(weights, 5, np.random.default_rng(2)) == draw(
        backwards, 5, np.random.default_rng(2)
    )


def test_unknown_size_is_the_mean_of_the_known() -> None:
    now = make_round(1, "012", 1, num_examples={"0": 2.0, "1": 4.0})
    np.testing.assert_array_equal(sizes(["2", "0", "1"], now), [3.0, 2.0, 4.0])


def test_no_known_size_makes_all_equal() -> None:
    np.testing.assert_array_equal(sizes(["0", "1"], make_round(1, "01", 1)), [1.0, 1.0])


def test_size_that_came_with_the_update_counts() -> None:
    now = make_round(1, "01", 1, num_examples={"0": 2.0})
    np.testing.assert_array_equal(sizes(["0"], now, {"0": {"num-examples": 7}}), [7.0])


def test_missing_metric_names_the_remedy() -> None:
    now = make_round(1, "35", 2)
    with pytest.raises(SelectionError, match=r"'train-loss'; client 3 reported acc\..*by loss_key"):
        reported({"3": {"acc": 1.0}, "5": {}}, "train-loss", "loss_key", now, known=False)


@pytest.mark.parametrize(("number", "known"), [(1, False), (2, False), (1, True), (9, True)])
def test_one_client_alone_does_not_tell_that_nobody_reports(number: int, known: bool) -> None:
    now = make_round(number, "3", 1)
    assert reported({"3": {"acc": 1.0}}, "train-loss", "loss_key", now, known) == {}


def test_in_the_third_round_one_client_tells() -> None:
    now = make_round(3, "3", 1)
    with pytest.raises(SelectionError, match="no client reported"):
        reported({"3": {"acc": 1.0}}, "train-loss", "loss_key", now, known=False)


def test_one_client_without_the_metric_is_left_out() -> None:
    delivered = {"1": {}, "2": {"train-loss": 4.0}}
    now = make_round(1, "12", 2)
    assert reported(delivered, "train-loss", "loss_key", now, known=False) == {"2": 4.0}


def test_no_delivery_is_no_error() -> None:
    now = make_round(1, "12", 2)
    assert reported({}, "train-loss", "loss_key", now, known=False) == {}


@pytest.mark.parametrize(
    ("number", "nearest", "below"), [(0.9 * 2, 2, 1), (0.9 * 5, 5, 4), (0.29 * 100, 29, 29)]
)
def test_rounding(number: float, nearest: int, below: int) -> None:
    assert (round_half_up(number), round_down(number)) == (nearest, below)


@pytest.mark.parametrize("told", ["train_loss", "train-loss"])
@pytest.mark.parametrize("asked", ["train_loss", "train-loss"])
@pytest.mark.parametrize(
    "make",
    [
        lambda key: ActiveFLRule(loss_key=key),
        lambda key: OortRule(loss_key=key),
        lambda key: PowerOfChoiceRule(2, 2, "rpow-d", loss_key=key),
    ],
    ids=["ActiveFL", "Oort", "rpow-d"],
)
def test_a_loss_in_kebab_or_snake_case_is_the_same_loss(make, asked, told) -> None:
    rule = make(asked)
    delivered = {client: {told: 0.5, "num-examples": 4.0} for client in "01"}
    after = rule.observe(rule.initial_state(), make_round(1, "01", 2), delivered)
    values = next(iter(after.values()))
    assert values.keys() == {"0", "1"}


def test_the_very_name_counts_where_there_are_both() -> None:
    delivered = {"0": {"train_loss": 1.0, "train-loss": 2.0}}
    now = make_round(1, "0", 1)
    assert reported(delivered, "train-loss", "loss_key", now, known=False) == {"0": 2.0}
    assert reported(delivered, "train_loss", "loss_key", now, known=False) == {"0": 1.0}
