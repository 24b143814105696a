"""Subsets against brute force, the rule for ties, and how good the search is."""

from itertools import combinations
from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pncs_flower import least_aligned_subset
from pncs_flower.subset import least_aligned as module
from pncs_flower.subset.least_aligned import nearest_mean_subset


def symmetric(num_clients: int, seed: int, whole: bool = False) -> np.ndarray:
    """Random similarities; whole numbers from 0 to 2 have many ties."""
    random = np.random.default_rng(seed)
    if whole:
        upper = np.triu(random.integers(0, 3, (num_clients, num_clients)).astype(float), 1)
    else:
        upper = np.triu(random.standard_normal((num_clients, num_clients)), 1)
    return np.asarray(upper + upper.T)


def mean_over_pairs(similarity: np.ndarray, subset: tuple[int, ...]) -> float:
    if len(subset) > 1:
        return float(np.mean([similarity[i, j] for i, j in combinations(subset, 2)]))
    others = [similarity[subset[0], j] for j in range(len(similarity)) if j != subset[0]]
    return float(np.mean(others)) if others else 0.0


def brute_force(similarity: np.ndarray, size: int) -> tuple[tuple[int, ...], float]:
    """The first of the best subsets in lexicographic order."""
    subsets = list(combinations(range(len(similarity)), size))
    values = [mean_over_pairs(similarity, subset) for subset in subsets]
    best = min(values)
    return next((s, v) for s, v in zip(subsets, values, strict=True) if v <= best + 1e-9)


@settings(deadline=None, max_examples=200)
@given(st.integers(1, 9), st.integers(0, 10**6), st.booleans(), st.data())
def test_equal_to_brute_force(k: int, seed: int, ties: bool, data: st.DataObject) -> None:
    similarity = symmetric(k, seed, whole=ties)
    size = data.draw(st.integers(1, k))
    subset = least_aligned_subset(similarity, size)
    indices, mean = brute_force(similarity, size)
    assert subset.indices == indices
    assert subset.mean_similarity == pytest.approx(mean, abs=1e-12)
    assert subset.optimal


def test_hand_computed() -> None:
    similarity = np.array(
        [[1.0, 0.9, 0.1, 0.2], [0.9, 1.0, 0.3, 0.0], [0.1, 0.3, 1.0, 0.8], [0.2, 0.0, 0.8, 1.0]]
    )
    subset = least_aligned_subset(similarity, 2)
    assert (subset.indices, subset.mean_similarity) == ((1, 3), 0.0)


def test_one_client_is_the_least_like_the_others() -> None:
    # Means to the others: 0.3, 0.4, 0.2.
    similarity = np.array([[1.0, 0.5, 0.1], [0.5, 1.0, 0.3], [0.1, 0.3, 1.0]])
    subset = least_aligned_subset(similarity, 1)
    assert subset.indices == (2,)
    assert subset.mean_similarity == pytest.approx(0.2, abs=1e-15)


def test_a_single_client_has_no_one_to_be_like() -> None:
    assert least_aligned_subset(np.ones((1, 1)), 1).mean_similarity == 0.0


@pytest.mark.parametrize("size", [1, 2, 5, 9, 12])
def test_ties_go_to_the_first_rows(size: int) -> None:
    # 0.1 is no binary fraction: sums in another order differ in the last bit.
    assert least_aligned_subset(np.full((12, 12), 0.1), size).indices == tuple(range(size))


@pytest.mark.parametrize("size", [2, 6])
def test_ties_in_a_search_go_to_the_first_rows(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_SUBSETS", 0)
    subset = least_aligned_subset(np.full((12, 12), 0.1), size)
    assert (subset.indices, subset.optimal) == (tuple(range(size)), False)


@pytest.mark.parametrize("seed", range(20))
def test_the_search_finds_the_best_of_small_problems(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    similarity = symmetric(14, seed)
    size = 2 + seed % 11
    exact = least_aligned_subset(similarity, size)
    monkeypatch.setattr(module, "_MAX_SUBSETS", 0)
    assert least_aligned_subset(similarity, size).indices == exact.indices


@pytest.mark.parametrize(("num_clients", "size"), [(23, 11), (40, 5), (150, 3), (150, 147)])
def test_proved_optimal_where_there_are_up_to_five_million(num_clients: int, size: int) -> None:
    assert comb(num_clients, size) <= 5_000_000
    assert least_aligned_subset(symmetric(num_clients, 1), size).optimal


def test_a_planted_subset_is_found() -> None:
    similarity = np.abs(symmetric(200, 2))
    planted = tuple(range(5, 200, 13))
    similarity[np.ix_(planted, planted)] = -1
    assert least_aligned_subset(similarity, len(planted)).indices == planted


def test_the_search_beats_a_greedy_choice() -> None:
    similarity = symmetric(120, 3)
    chosen = [int(i) for i in np.unravel_index(similarity.argmin(), similarity.shape)]
    while len(chosen) < 12:
        cost = similarity[chosen].sum(axis=0)
        cost[chosen] = np.inf
        chosen.append(int(cost.argmin()))
    greedy = mean_over_pairs(similarity, tuple(chosen))
    assert least_aligned_subset(similarity, 12).mean_similarity < 1.02 * greedy < 0


def test_the_same_seed_gives_the_same_subset() -> None:
    similarity = symmetric(60, 4)
    assert least_aligned_subset(similarity, 20, 9) == least_aligned_subset(similarity, 20, 9)


def test_a_budget_bounds_the_time() -> None:
    subset = least_aligned_subset(symmetric(60, 4), 20, budget_seconds=0.05)
    assert len(set(subset.indices)) == 20


@settings(deadline=None, max_examples=40)
@given(st.integers(3, 8), st.integers(0, 10**6), st.data())
def test_permuted_rows_choose_the_same_clients(k: int, seed: int, data: st.DataObject) -> None:
    similarity = symmetric(k, seed)
    size = data.draw(st.integers(1, k))
    order = np.array(data.draw(st.permutations(range(k))))
    permuted = least_aligned_subset(similarity[np.ix_(order, order)], size)
    assert sorted(order[list(permuted.indices)]) == list(
        least_aligned_subset(similarity, size).indices
    )


@settings(deadline=None, max_examples=40)
@given(st.integers(2, 8), st.integers(0, 10**6), st.data())
def test_the_diagonal_is_not_read(k: int, seed: int, data: st.DataObject) -> None:
    similarity = symmetric(k, seed)
    size = data.draw(st.integers(1, k))
    other = similarity + np.diag(np.linspace(-3, 3, k))
    assert least_aligned_subset(similarity, size) == least_aligned_subset(other, size)


@pytest.mark.parametrize(
    ("similarity", "size", "message"),
    [
        (np.ones((3, 3)), 0, "size is 0, want 1 to the 3"),
        (np.ones((3, 3)), 4, "size is 4, want 1 to the 3"),
        (np.ones((3, 2)), 1, r"shape \(3, 2\)"),
        (np.array([[1.0, np.nan], [np.nan, 1.0]]), 1, "clients 0 and 1 is nan"),
        (np.array([[1.0, 0.2], [0.3, 1.0]]), 1, "not symmetric"),
    ],
)
def test_errors_name_what_was_given(similarity: np.ndarray, size: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        least_aligned_subset(similarity, size)


def distance(
    vectors: np.ndarray,
    target: np.ndarray,
    subset: tuple[int, ...],
    weights: np.ndarray | None,
) -> float:
    chosen = list(subset)
    mean = np.average(vectors[chosen], axis=0, weights=None if weights is None else weights[chosen])
    return float(((mean - target) ** 2).sum() ** 0.5)


@settings(deadline=None, max_examples=180)
@given(st.integers(1, 8), st.integers(0, 10**6), st.booleans(), st.booleans(), st.data())
def test_nearest_mean_is_equal_to_brute_force(
    k: int, seed: int, weighted: bool, centred: bool, data: st.DataObject
) -> None:
    random = np.random.default_rng(seed)
    vectors = random.standard_normal((k, 4))
    target = vectors.mean(axis=0) if centred else random.standard_normal(4)
    weights = random.uniform(0.2, 3, k) if weighted else None
    size = data.draw(st.integers(1, k))
    best = min(
        distance(vectors, target, chosen, weights) for chosen in combinations(range(k), size)
    )
    chosen, optimal = nearest_mean_subset(vectors, target, size, weights)
    assert distance(vectors, target, chosen, weights) == pytest.approx(best, abs=1e-9)
    assert optimal


@pytest.mark.parametrize("weighted", [False, True])
def test_nearest_mean_search_finds_the_best_of_a_small_problem(
    weighted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.default_rng(8)
    vectors, target = random.standard_normal((16, 6)), random.standard_normal(6)
    weights = random.uniform(0.2, 3, 16) if weighted else None
    exact, optimal = nearest_mean_subset(vectors, target, 6, weights)
    assert optimal
    monkeypatch.setattr(module, "_MAX_SUBSETS", 0)
    assert nearest_mean_subset(vectors, target, 6, weights) == (exact, False)


@pytest.mark.parametrize("scale", [1e-250, 1e-100, 1.0, 1e100, 1e250])
def test_nearest_mean_is_right_at_any_scale(scale: float) -> None:
    vectors = np.array([[1.0, 0], [0, 1], [1, 1], [-1, 0]])
    assert nearest_mean_subset(scale * vectors, np.zeros(2), 2) == ((0, 3), True)
    assert nearest_mean_subset(scale * vectors, scale * np.ones(2), 1) == ((2,), True)


def test_nearest_mean_of_all_takes_all() -> None:
    vectors = np.random.default_rng(0).standard_normal((5, 3))
    assert nearest_mean_subset(vectors, vectors.mean(axis=0), 5) == ((0, 1, 2, 3, 4), True)


def test_nearest_mean_ties_go_to_the_first_rows() -> None:
    assert nearest_mean_subset(np.ones((6, 2)), np.zeros(2), 3) == ((0, 1, 2), True)
