"""Whom the sketched mean asks, where it does not ask all."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from rounds import make_round

from pncs_flower.strategies.rules.sketched_mean import SketchedMeanRule

CLIENTS = [str(k) for k in range(12)]
SIZES = np.array([1.0, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 200])


def round_of(number: int, weights=SIZES):
    shares = dict(zip(CLIENTS, (weights / np.sum(weights)).tolist(), strict=True))
    return replace(make_round(number, CLIENTS, 2), shares=shares)


def test_chances_follow_the_weights_and_none_is_above_1():
    chances = SketchedMeanRule(2, num_candidates=4).chances(round_of(1))
    assert chances["11"] == 1.0
    others = np.array([chances[client] for client in CLIENTS[:-1]])
    np.testing.assert_allclose(others, 3 * SIZES[:-1] / SIZES[:-1].sum(), rtol=1e-12)


@pytest.mark.parametrize("weights", [SIZES, np.ones(12), np.r_[np.full(11, 1e-9), 1.0]])
def test_as_many_are_asked_as_were_wanted_and_each_as_often_as_its_chance_says(weights):
    rule, rounds, asked = SketchedMeanRule(2, num_candidates=4), 4000, Counter()
    for number in range(1, rounds + 1):
        now = round_of(number, weights)
        those = rule.candidates({}, now)
        assert len(those) == len(set(those)) == 4
        asked.update(those)
    chances = rule.chances(round_of(1, weights))
    for client in CLIENTS:
        chance = chances[client]
        deviation = (chance * (1 - chance) / rounds) ** 0.5
        assert abs(asked[client] / rounds - chance) <= 4.5 * deviation + 1e-9


def test_others_are_asked_in_another_round_and_with_another_seed():
    rule = SketchedMeanRule(2, num_candidates=4)
    drawn = {rule.candidates({}, replace(round_of(n), seed=s)) for n in (1, 2) for s in (0, 1)}
    assert len(drawn) == 4
    assert rule.candidates({}, round_of(1)) == rule.candidates({}, round_of(1))


@pytest.mark.parametrize("number", [None, 12, 20])
def test_all_are_asked_where_as_many_are_wanted(number):
    rule = SketchedMeanRule(2, num_candidates=number)
    assert rule.chances(round_of(1)) == {}
    assert rule.candidates({}, round_of(1)) == tuple(CLIENTS)


def test_without_weights_all_have_the_same_chance():
    chances = SketchedMeanRule(2, num_candidates=3).chances(make_round(1, CLIENTS, 2))
    assert chances == dict.fromkeys(CLIENTS, 0.25)


def test_fewer_are_not_asked_than_are_selected():
    with pytest.raises(ValueError, match="candidates is 1, but 2"):
        SketchedMeanRule(2, num_candidates=1)
