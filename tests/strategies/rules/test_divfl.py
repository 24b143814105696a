"""DivFL: facility location on distances, against enumeration and by hand."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rounds import make_round

from pncs_flower.strategies.round.selector import Selector
from pncs_flower.strategies.rules.divfl import DivFLRule, facility_location, pairwise_distances


def summaries(vectors: dict[str, list[float]]) -> dict:
    return {client: {"fc": np.array(v, np.float32)} for client, v in vectors.items()}


def choose(rule: DivFLRule, vectors: dict[str, list[float]], number: int = 1) -> tuple[str, ...]:
    now = make_round(number, vectors, rule.num_selected)
    return rule.select(rule.initial_state(), now, summaries(vectors)).clients


def cost(distances: np.ndarray, chosen: tuple[int, ...]) -> float:
    return float(sum(min(row[i] for i in chosen) for row in distances))


def test_distances_are_not_squared() -> None:
    vectors = np.array([[0.0, 0.0], [3.0, 4.0], [6.0, 8.0]], np.float32)
    np.testing.assert_array_equal(pairwise_distances(vectors), [[0, 5, 10], [5, 0, 5], [10, 5, 0]])


def test_blocks_of_coordinates_add_up(monkeypatch) -> None:
    vectors = np.random.default_rng(0).normal(size=(5, 103))
    expected = [[np.linalg.norm(a - b) for a in vectors] for b in vectors]
    monkeypatch.setattr("pncs_flower.rows._WIDEST", 10)
    np.testing.assert_allclose(pairwise_distances(vectors), expected, rtol=1e-14, atol=0)


@pytest.mark.parametrize("apart", [1e-12, 1e-7, 1e-3, 1e-1])
def test_near_duplicates_are_measured_as_well_as_others(apart: float) -> None:
    rng = np.random.default_rng(2)
    vectors = np.repeat(rng.normal(size=(3, 40)), 4, axis=0)
    vectors += apart * rng.normal(size=vectors.shape)
    vectors[5] = vectors[6]
    expected = [[math.dist(one, other) for other in vectors] for one in vectors]
    found = pairwise_distances(vectors)
    np.testing.assert_allclose(found, expected, rtol=1e-11, atol=0)
    assert found[5, 6] == 0
    np.testing.assert_array_equal(found, found.T)


def test_choice_differs_from_that_by_squared_distances() -> None:
    # On a line at 0, 1, 2, 3 and 20. Distances sum to 22 from the client at 2 and to 23 from the
    # one at 3; their squares to 330 and 303.
    vectors = {"0": [0.0], "1": [1.0], "2": [2.0], "3": [3.0], "4": [20.0]}
    assert choose(DivFLRule(1), vectors) == ("2",)


def test_greedy_by_hand() -> None:
    # On a line at 0, 1, 2, 3, 10, 11 and 13. The client at 3, the median, has the smallest sum, 31;
    # with it, those at 10, 11 and 13 lower the sum to 10, 9 and 11.
    vectors = {str(k): [place] for k, place in enumerate((0.0, 1.0, 2.0, 3.0, 10.0, 11.0, 13.0))}
    assert choose(DivFLRule(2), vectors) == ("3", "5")


@given(st.integers(0, 10_000), st.integers(1, 4))
def test_greedy_is_within_the_bound_of_the_best(seed: int, size: int) -> None:
    # The drop of the sum from a client at distance D from all is submodular, so greedy reaches
    # 1 - 1/e of the best drop (Nemhauser, Wolsey and Fisher 1978).
    distances = pairwise_distances(np.random.default_rng(seed).normal(size=(7, 3)))
    best = min(cost(distances, s) for s in itertools.combinations(range(7), size))
    bound = 7 * distances.max()
    drop = bound - cost(distances, facility_location(distances, size))
    assert drop >= (1 - 1 / np.e) * (bound - best) - 1e-9


@given(st.integers(0, 10_000))
def test_all_clients_leave_no_distance(seed: int) -> None:
    distances = pairwise_distances(np.random.default_rng(seed).normal(size=(5, 2)))
    assert sorted(facility_location(distances, 5)) == [0, 1, 2, 3, 4]


def test_sample_of_all_is_plain_greedy() -> None:
    distances = pairwise_distances(np.random.default_rng(1).normal(size=(9, 4)))
    rng = np.random.default_rng(0)
    assert facility_location(distances, 3, rng, 9) == facility_location(distances, 3)


def test_stochastic_greedy_takes_the_best_of_a_sample() -> None:
    # 100 points on a line and a sample of 10: the middle is the best of all, and only sometimes
    # in the sample. The best of 10 uniform points is within 30 of the middle with chance 1 - .4^10.
    vectors = {str(k): [float(k)] for k in range(100)}
    picks = {
        int(choose(DivFLRule(1, stochastic=True), vectors, number)[0]) for number in range(1, 41)
    }
    assert len(picks) > 5
    assert all(abs(pick - 49.5) < 30 for pick in picks)


def test_ties_go_to_those_that_wait_longest() -> None:
    now = make_round(1, ["3", "0", "2", "1"], 2)
    equal = summaries({client: [1.0, 1.0] for client in "0123"})
    rule = DivFLRule(2)
    assert rule.select(rule.initial_state(), now, equal).clients == ("3", "0")


def test_cooling_clients_are_stood_for_but_not_chosen() -> None:
    # Three cooling clients at 10: the available one near to them stands for them.
    vectors = {"0": [0.0], "1": [0.0], "2": [9.0], "3": [10.0], "4": [10.0], "5": [10.0]}
    rule = DivFLRule(1)
    now = make_round(1, "012", 1, cooling="345")
    assert rule.candidates(rule.initial_state(), now) == tuple("012345")
    assert rule.select(rule.initial_state(), now, summaries(vectors)).clients == ("2",)


def test_stale_summaries_are_renewed_by_those_that_trained() -> None:
    rng = np.random.default_rng(0)
    clients = [str(k) for k in range(6)]
    selector = Selector(DivFLRule(2, stale=True), 0, seed=0)
    delivered: tuple[str, ...] = tuple(clients)  # all are asked in the first round
    for number in range(1, 6):
        plan = selector.plan(number, clients)
        assert sorted(plan.candidates) == sorted(delivered)
        answers = summaries({c: rng.normal(size=3) for c in plan.candidates})
        delivered = selector.choose(plan, answers).clients
        selector.observe(plan, delivered, {client: {} for client in delivered})


def test_stale_summary_counts_until_it_is_renewed() -> None:
    rule = DivFLRule(1, stale=True)
    state = {"table": {str(k): np.array([float(k)]) for k in range(5)}, "outdated": ["4"]}
    now = make_round(2, "01234", 1)
    choice = rule.select(state, now, summaries({"4": [2.0]}))
    assert choice.clients == ("2",)
    assert choice.state["outdated"] == []
    assert choice.state["table"]["4"] == [2.0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sketch": "norm"}, "sketch is 'norm', but distances need one that is linear"),
        ({"sketch": "power-moments:8"}, "distances need one that is linear"),
        ({"summary": "loss"}, "summary is 'loss'"),
        ({"sample_share": 2.0}, r"sample_share is 2\.0"),
    ],
)
def test_wrong_option_is_refused(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DivFLRule(**options)


def test_coordinates_of_several_rounds_are_not_compared() -> None:
    with pytest.raises(ValueError, match="'coordinates:2' with stale=True"):
        DivFLRule(1, sketch="coordinates:2", stale=True)
