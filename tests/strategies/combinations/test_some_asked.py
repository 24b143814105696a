"""The sketched mean where only some are asked: the estimate of the mean, in plain NumPy."""

from dataclasses import replace

import numpy as np
import pytest
from rounds import make_round

from pncs_flower.protocol import SummaryRequest
from pncs_flower.strategies.combination import Delivery
from pncs_flower.strategies.combinations import SketchedFit
from pncs_flower.strategies.rules.sketched_mean import SketchedMeanRule

CLIENTS = tuple(map(str, range(6)))
WEIGHTS = dict(zip(CLIENTS, np.array([1, 2, 3, 4, 5, 15]) / 30, strict=True))


def sketch(client: str, number: int) -> np.ndarray:
    """Of length 1, so that none is shortened."""
    values = np.random.default_rng([int(client), number]).standard_normal(8) + 1
    return values / np.linalg.norm(values)


@pytest.fixture
def combination() -> SketchedFit:
    made = SketchedFit(store=0)
    made.request(SummaryRequest("update", "layers", whole=True))
    made.begin(None)
    return made


def estimate(asked, number, last, w, chances) -> np.ndarray:
    """Σ w_k h_k + Σ_asked q_k (Φu_k - h_k), q_k in proportion to w_k over its chance."""
    q = {c: w[c] / chances.get(c, 1.0) for c in asked}
    total = sum(q.values())
    known = sum(w[c] * h for c, h in last.items() if c in w)
    return known + sum(q[c] / total * (sketch(c, number) - last.get(c, 0.0)) for c in asked)


def test_last_sketches_stand_in_and_the_change_of_those_asked_is_that_of_all(combination):
    last, left = {}, 0.0
    # Client 4 is never asked, 1 does not answer in round 3, 0 delivers nothing in round 4 and has
    # left in round 5, and in round 6 all are asked.
    rounds = ["012", "125", "05", "013", "135", CLIENTS]
    for number, asked in enumerate(rounds, 1):
        w = {c: v for c, v in WEIGHTS.items() if number < 5 or c != "0"}
        w = {c: v / sum(w.values()) for c, v in w.items()}
        asked = [c for c in asked if c in w]
        chances = {} if number == 6 else {c: min(1.0, 3 * v) for c, v in w.items()}
        now = replace(make_round(number, w, 1), shares=w, chances=chances)
        sketches = {c: sketch(c, number) for c in asked}
        mean = estimate(asked, number, last, w, chances)
        if number == 6:
            np.testing.assert_allclose(mean, sum(w[c] * sketches[c] for c in w), rtol=1e-12)
        target = combination.fit(now, sketches).target
        np.testing.assert_allclose(target, mean + left, rtol=1e-6, atol=1e-9)
        missing = ["0"] if number == 4 else []
        there = [c for c in asked if c not in missing]
        given = Delivery(now, {there[0]: sketches[there[0]].astype("f4")}, sketches, missing)
        change = combination.combine(given)
        combination.keep(given, change)
        left = combination.state()["left"]
        known = {c: h for c, h in last.items() if c not in missing}
        last = {**known, **{c: sketch(c, number) for c in there}}
        kept = combination.state()["last"]
        assert kept.keys() == last.keys()
        for client, values in kept.items():
            np.testing.assert_allclose(values, last[client], rtol=1e-6)
    assert np.abs(left).max() > 0


def test_where_all_were_asked_all_the_same_chances_have_no_say(combination):
    now = replace(make_round(1, CLIENTS, 1), shares=WEIGHTS, chances=WEIGHTS)
    sketches = {c: sketch(c, 1) for c in CLIENTS}
    mean = sum(w * sketches[c] for c, w in WEIGHTS.items())
    np.testing.assert_allclose(combination.fit(now, sketches).target, mean, rtol=1e-12)


def test_who_failed_to_deliver_can_be_forgotten_with_what_was_left_over(combination):
    first = replace(make_round(1, CLIENTS, 1), shares=WEIGHTS)
    sketches = {c: sketch(c, 1) for c in CLIENTS}
    update = {"0": sketches["0"].astype("f4")}
    for now, missing in ((first, []), (replace(first, number=2), ["3"])):
        given = Delivery(now, update, sketches, missing)
        combination.keep(given, combination.combine(given))
    restored = SketchedFit(store=0)
    restored.restore(combination.state())
    for each in (combination, restored):
        assert "3" not in each.state()["last"]
        assert np.abs(each.state()["left"]).max() > 0
        each.forget("17")
        assert np.abs(each.state()["left"]).max() > 0
        each.forget("3")
        assert not len(each.state()["left"])


def test_over_all_draws_it_is_the_mean(combination):
    """Asked by their weight, each weighed by one over its chance."""
    rule, draws = SketchedMeanRule(1, num_candidates=2), 3000
    total = np.zeros(8)
    for number in range(1, draws + 1):
        now = replace(make_round(number, CLIENTS, 1), shares=WEIGHTS)
        asked = rule.candidates({}, now)
        now = replace(now, chances=rule.chances(now))
        total += combination.fit(now, {c: sketch(c, 0) for c in asked}).target
    mean = sum(w * sketch(c, 0) for c, w in WEIGHTS.items())
    np.testing.assert_allclose(total / draws, mean, atol=0.02)
    plain = np.mean([sketch(c, 0) for c in CLIENTS], axis=0)
    assert np.abs(mean - plain).max() > 0.1


@pytest.mark.parametrize("some", [False, True], ids=["all asked", "some asked"])
def test_who_is_asked_in_vain_does_not_shorten_the_mean(combination, some):
    """Clients 5, half of the weight, and 2 never answer; 1 fails to deliver and steps back."""
    same, last_asked = sketch("0", 0), {}
    for number in range(1, 9):
        asked = CLIENTS[number % 2 :: 2] if some else CLIENTS
        asked = [c for c in asked if c != "1" or number < 6]
        chances = dict.fromkeys(CLIENTS, 0.5) if some else {}
        now = replace(make_round(number, CLIENTS, 1), shares=WEIGHTS, chances=chances)
        now = replace(now, last_asked=dict(last_asked))
        sketches = {c: same for c in asked if c not in "25"}
        delivered = min(c for c in sketches if c != "1")
        missing = ["1"] if number == 5 else []
        given = Delivery(now, {delivered: same.astype("f4")}, sketches, missing)
        if number > 2 or not some:  # all have been asked
            target, left = combination.fit(now, sketches).target, combination.state()["left"]
            np.testing.assert_allclose(target, same + (left if len(left) else 0), rtol=1e-6)
        combination.keep(given, combination.combine(given))
        last_asked |= dict.fromkeys(asked, number)
