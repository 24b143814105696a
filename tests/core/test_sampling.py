"""Sampling in proportion to weight: over all draws, for each order and start of the steps."""

import numpy as np
import pytest
from draws import Fixed, all_draws

from pncs_flower.sampling import inclusion_chances, systematic_sample

WEIGHTS = {
    "unequal": [1.0, 2.0, 3.5, 0.5, 7.0],
    "one sure": [1.0, 2.0, 100.0, 3.0, 1.5],
    "two sure": [1e-9, 1.0, 80.0, 90.0, 1.0],
    "equal": [0.1] * 5,
    "some zero": [0.0, 3.0, 0.0, 1.0, 2.0],
    "one above zero": [0.0, 0.0, 1.0, 0.0, 0.0],
    "all zero": [0.0] * 5,
    "extreme": [1e-18, 1e18, 1.0, 1e9, 1e-300],
}


def by_hand(weights: list[float], count: int) -> np.ndarray:
    """The chances: the largest are sure to be drawn, as long as their part is more than one."""
    values, sure = np.array(weights), np.zeros(len(weights), dtype=bool)
    for place in np.argsort(-values):
        left = count - sure.sum()
        if left == 0 or values[place] * left <= values[~sure].sum():
            break
        sure[place] = True
    rest = values * (count - sure.sum()) / values[~sure].sum()
    return np.where(sure, 1.0, rest)


@pytest.mark.parametrize("count", [1, 2, 3, 4])
@pytest.mark.parametrize("name", WEIGHTS)
def test_each_is_drawn_with_its_chance_and_as_many_as_are_wanted(name, count):
    weights = dict(zip("abcde", WEIGHTS[name], strict=True))
    chances = inclusion_chances(weights, count)
    assert all(0 <= chance <= 1 for chance in chances.values())
    if min(WEIGHTS[name]) > 0:
        np.testing.assert_allclose([*chances.values()], by_hand(WEIGHTS[name], count), rtol=1e-12)
    drawn = dict.fromkeys(weights, 0.0)
    for probability, those in all_draws(chances):
        assert len(set(those)) == len(those) == count
        for each in those:
            drawn[each] += probability
    for each, chance in chances.items():
        assert drawn[each] == pytest.approx(chance, abs=1e-9)


def test_zeros_are_drawn_only_where_too_few_others_are_there():
    weights = {"a": 0.0, "b": 3.0, "c": 0.0, "d": 1.0}
    assert inclusion_chances(weights, 2) == pytest.approx({"a": 0, "b": 1, "c": 0, "d": 1})
    three = inclusion_chances(weights, 3)
    assert three == pytest.approx({"a": 0.5, "b": 1, "c": 0.5, "d": 1})


@pytest.mark.parametrize("start", [0.0, 1e-17, 0.5, 1 - 2**-53])
@pytest.mark.parametrize("total", [1, 3, 7, 49, 99])
def test_rounding_changes_no_number(total, start):
    """Sums of hundredths and of ones that end above or below a whole number."""
    rng = np.random.default_rng(total)
    for weights in (np.ones(100), rng.random(100), rng.pareto(0.5, 100), np.r_[np.ones(99), 1e9]):
        chances = inclusion_chances({str(k): float(w) for k, w in enumerate(weights)}, total)
        for _ in range(20):
            drawn = systematic_sample(chances, Fixed(rng.permutation(100), start))
            assert len(set(drawn)) == len(drawn) == total
            if start == 0.5:  # at an end, the last bit decides
                assert {each for each, chance in chances.items() if chance == 1.0} <= set(drawn)


def test_what_is_drawn_is_in_the_order_given():
    chances = dict.fromkeys("dbca", 0.5)
    drawn = {systematic_sample(chances, np.random.default_rng(seed)) for seed in range(50)}
    assert drawn == {("d", "b"), ("d", "c"), ("d", "a"), ("b", "c"), ("b", "a"), ("c", "a")}
