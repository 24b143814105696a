"""The fit of sketches against dense solvers and a pursuit written out."""

import os
import subprocess
import sys
import warnings

import numpy as np
import pytest
from scipy.optimize import lsq_linear

import pncs_flower.fit as fit_module
from pncs_flower.fit import SketchFit, median_norm, ridge_fit, shortened_to_median

RIDGE = 0.01


def augmented(
    columns: np.ndarray, target: np.ndarray, prior: np.ndarray, penalties: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the least-squares system that says the same, one row for each penalty."""
    roots = np.sqrt(penalties)
    return np.concatenate([columns.T, np.diag(roots)]), np.concatenate([target, roots * prior])


def fitted(
    columns: np.ndarray,
    target: np.ndarray,
    prior: np.ndarray,
    penalties: np.ndarray,
    bound: float = np.inf,
) -> np.ndarray:
    return ridge_fit(columns @ columns.T, columns @ target, prior, penalties, bound)


def example(seed: int, n: int, r: int, noise: float = 1.0) -> tuple[np.ndarray, ...]:
    """Return columns that are alike but for noise, a target, a prior and penalties."""
    rng = np.random.default_rng(seed)
    columns = rng.normal(size=(n, 4)) @ rng.normal(size=(4, r)) + noise * rng.normal(size=(n, r))
    columns *= 10.0 ** rng.uniform(-2, 2, size=(n, 1))
    prior = rng.random(n)
    squares = (columns**2).sum(1)
    return columns, rng.normal(size=r), prior / max(prior.sum(), 1), RIDGE * squares


@pytest.mark.parametrize(("n", "r"), [(1, 1), (1, 9), (7, 30), (30, 30), (40, 11), (110, 256)])
def test_ridge_is_the_least_squares_solution(n: int, r: int) -> None:
    problem = example(n, n, r)
    expected, *_ = np.linalg.lstsq(*augmented(*problem), rcond=None)
    scale = np.linalg.norm(problem[0], axis=1)
    np.testing.assert_allclose(fitted(*problem) * scale, expected * scale, atol=1e-10, rtol=1e-9)


@pytest.mark.parametrize("bound", [0.001, 0.1, 1.0, 10.0])
@pytest.mark.parametrize("noise", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("seed", range(25))
def test_bounded_ridge_is_what_another_solver_finds(seed: int, noise: float, bound: float) -> None:
    problem = example(seed, 1 + 7 * seed % 25, 1 + 11 * seed % 29, noise)
    found = fitted(*problem, bound)
    matrix, right = augmented(*problem)
    expected = lsq_linear(matrix, right, (-bound, bound), method="bvls", tol=1e-14)
    scale = np.linalg.norm(problem[0], axis=1)
    np.testing.assert_allclose(found * scale, expected.x * scale, atol=1e-7, rtol=1e-7)
    # The conditions of Karush, Kuhn and Tucker, in the terms of each column's length.
    gradient = matrix.T @ (matrix @ found - right) / scale
    small = 1e-9 * max(1.0, float(np.abs(found * scale).sum()))
    assert (np.abs(found) <= bound).all()
    upper, lower = (np.isclose(found, end, rtol=1e-12, atol=0) for end in (bound, -bound))
    assert (np.abs(gradient[~upper & ~lower]) <= small).all()
    assert (gradient[upper] <= small).all()
    assert (gradient[lower] >= -small).all()


def test_a_bound_can_be_left_again() -> None:
    """To hold whatever is beyond its bound once and for all would end elsewhere."""
    columns = np.array([[1.0, 0.9], [0.9, 1.0]])
    target = np.array([4.0, 3.0])
    found = fitted(columns, target, np.zeros(2), np.zeros(2), 3.0)
    np.testing.assert_allclose(found, lsq_linear(columns.T, target, (-3, 3)).x, atol=1e-8)


@pytest.mark.parametrize("seed", range(5))
def test_a_bound_costs_few_systems_of_equations(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where most are at the bound, and where it is met exactly, so that rounding has the say."""
    rng = np.random.default_rng(seed)
    columns = rng.normal(size=(100, 30)) @ rng.normal(size=(30, 256))
    columns += rng.normal(size=columns.shape)
    sizes = list[int]()

    def counted(matrix: np.ndarray, right: np.ndarray) -> np.ndarray:
        sizes.append(len(right))
        return np.asarray(np.linalg.solve(matrix, right))

    monkeypatch.setattr(fit_module, "_solve", counted)
    squares = (columns**2).sum(1)
    found = fitted(columns, 3 * columns.mean(0), np.full(100, 0.01), RIDGE * squares, 0.02)
    assert np.isclose(np.abs(found), 0.02).sum() > 50
    assert len(sizes) < 25
    exact = np.clip(rng.normal(size=100), -1, 1)
    for prior, penalties in ((exact, RIDGE * squares), (np.zeros(100), np.zeros(100))):
        sizes.clear()
        found = fitted(columns, exact @ columns, prior, penalties, 1.0)
        np.testing.assert_allclose(found, exact, atol=1e-5)
        assert len(sizes) < 10


def test_no_columns() -> None:
    fit = SketchFit(np.ones(3), {})
    assert fit.coefficients().shape == (0,)
    np.testing.assert_array_equal(fit.residual(fit.coefficients()), 1.0)
    assert fit.pursue([], np.zeros((0, 3)), 2) == []
    assert fit.with_columns([], np.array([]), np.array([])).coefficients().shape == (0,)


def test_wrong_shapes_and_values_say_so() -> None:
    fit, row = SketchFit(np.ones(3), {}), np.ones((1, 3))
    with pytest.raises(ValueError, match=r"columns of shape \(1, 2\), want \(1, 3\)"):
        fit.with_columns(["a"], np.zeros((1, 2)))
    with pytest.raises(ValueError, match="columns of shape"):
        fit.with_columns(["a"], np.array([]))
    with pytest.raises(ValueError, match="squared norms of shape"):
        fit.with_columns(["a"], row, np.ones(2))
    with pytest.raises(ValueError, match="squared norms that are not finite"):
        fit.with_columns(["a"], row, np.array([np.inf]))
    with pytest.raises(ValueError, match="columns that are not finite"):
        fit.with_columns(["a"], row * np.nan)
    with pytest.raises(ValueError, match="target of shape"):
        SketchFit(row, {})
    with pytest.raises(ValueError, match="candidates of shape"):
        fit.pursue(["a", "b"], row, 1)


@pytest.mark.parametrize("penalty", [0.0, 0.5])
def test_a_column_of_zeros_keeps_its_prior(penalty: float) -> None:
    columns = np.array([[0.0, 0.0], [1.0, 0.0]])
    found = fitted(columns, np.array([1.0, 5.0]), np.array([0.3, 0.7]), np.full(2, penalty))
    assert found[0] == 0.3
    assert found[1] == pytest.approx((1 + penalty * 0.7) / (1 + penalty), abs=1e-8)


def test_equal_columns_share() -> None:
    columns = np.array([[1.0, 2.0]] * 4)
    found = fitted(columns, np.array([2.0, 4.0]), np.zeros(4), np.zeros(4))
    np.testing.assert_allclose(found, 0.5, atol=1e-6)
    # As many as a store may hold, all but alike: the factor must not break down.
    columns = np.repeat(np.random.default_rng(0).normal(size=(3, 64)), 200, axis=0)
    found = fitted(columns, columns.sum(0) / 100, np.zeros(600), np.zeros(600))
    np.testing.assert_allclose(found, 0.01, rtol=1e-3)


def test_a_vanishing_sketch_of_a_large_update_keeps_its_prior() -> None:
    """A liar knows the hash: the true norm must count."""
    fit = SketchFit(np.array([5.0, 0.0]), {"liar": 0.5, "honest": 0.5})
    lie = fit.with_columns(["liar", "honest"], np.array([[1e-3, 0.0], [0.0, 1.0]]), [1e6, 1.0])
    assert lie.coefficients()[0] == pytest.approx(0.5, abs=1e-6)


@pytest.mark.parametrize("bound", [1.0, np.inf])
@pytest.mark.parametrize("penalty", [0.0, RIDGE])
def test_unlike_scales(penalty: float, bound: float) -> None:
    rng = np.random.default_rng(0)
    scales = 10.0 ** np.array([-38, -20, 0, 20, 38])
    columns = rng.normal(size=(5, 8)) * scales[:, None]
    for size in (1e-38, 1e-20, 1.0, 1e20, 1e38):
        target = rng.normal(size=8) * size
        found = fitted(columns, target, np.zeros(5), penalty * (columns**2).sum(1), bound)
        assert np.isfinite(found).all()
        assert (np.abs(found) <= bound).all()
        if bound == np.inf:  # the same as if all were of length 1
            unit = fitted(
                columns / scales[:, None],
                target / size,
                np.zeros(5),
                penalty * (columns**2).sum(1) / scales**2,
            )
            np.testing.assert_allclose(found / size * scales, unit, rtol=1e-6, atol=1e-7)


def by_hand(
    target: np.ndarray,
    stored: list[tuple[str, np.ndarray]],
    candidates: dict[str, np.ndarray],
    weights: dict[str, float],
    count: int,
) -> list[str]:
    """Pursue with nothing kept from step to step."""
    columns, chosen = list(stored), list[str]()
    for _ in range(count):
        residual = target
        if columns:
            matrix = np.array([column for _, column in columns])
            owners = [owner for owner, _ in columns]
            prior = np.array(
                [weights[o] * (o not in owners[i + 1 :]) for i, o in enumerate(owners)]
            )
            penalties = RIDGE * (matrix**2).sum(1)
            system = augmented(matrix, target, prior / prior.sum(), penalties)
            residual = target - np.linalg.lstsq(*system, rcond=None)[0] @ matrix
        scores = {
            owner: abs(row @ residual) / np.linalg.norm(row)
            for owner, row in candidates.items()
            if owner not in chosen
        }
        best = max(scores, key=scores.__getitem__)
        chosen.append(best)
        columns.append((best, candidates[best]))
    return chosen


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("num_stored", [0, 12])
def test_pursuit_is_that_written_out(seed: int, num_stored: int) -> None:
    rng = np.random.default_rng(seed)
    names = [f"client {number}" for number in range(20)]
    base = rng.normal(size=(20, 32)) @ np.diag(rng.random(32))
    weights = dict(zip(names, rng.random(20), strict=True))
    target = np.array(list(weights.values())) @ base / sum(weights.values())
    owners = [names[number] for number in rng.integers(0, 20, num_stored)]  # some twice
    stored = rng.normal(size=(num_stored, 32)) + target
    fit = SketchFit(target, weights).with_columns(owners, stored)
    found = [names[index] for index in fit.pursue(names, base, 9)]
    candidates = dict(zip(names, base, strict=True))
    kept = list(zip(owners, stored, strict=True))
    assert found == by_hand(target, kept, candidates, weights, 9)
    assert fit.owners == tuple(owners)  # the fit itself is as it was


def test_prior_is_that_of_the_newest_column_of_each_client() -> None:
    fit = SketchFit(np.ones(2), {"a": 1.0, "b": 3.0, "gone": 9.0})
    fit = fit.with_columns(["a", "b", "stranger", "a"], np.ones((4, 2)))
    np.testing.assert_array_equal(fit.prior, [0, 0.75, 0, 0.25])
    np.testing.assert_array_equal(
        fit.with_columns(["b"], np.ones((1, 2))).prior, [0, 0, 0, 0.25, 0.75]
    )
    np.testing.assert_array_equal(
        SketchFit(np.ones(2), {}).with_columns(["a"], np.ones((1, 2))).prior, 0
    )


def test_a_long_update_counts_by_its_prior_no_more_than_the_longest() -> None:
    fit = SketchFit(np.ones(2), dict.fromkeys("abcd", 1.0), ridge=0.25, longest=3.0)
    fit = fit.with_columns("abcd", np.zeros((4, 2)), [9.0, 36.0, 9e12, 0.0])
    np.testing.assert_allclose(fit.prior, [0.25, 0.125, 0.25e-6, 0.25])
    np.testing.assert_array_equal(fit.coefficients(), fit.prior)
    fit = SketchFit(np.ones(2), {"a": 1.0}, ridge=0.0, longest=3.0)  # nor without a penalty
    assert fit.with_columns("a", np.ones((1, 2)), [36.0]).prior == 0.5


def test_columns_one_by_one_or_at_once() -> None:
    columns, target, *_ = example(3, 12, 9)
    names = [str(number % 5) for number in range(12)]
    start = SketchFit(target, dict.fromkeys(names, 1.0), bound=0.5)
    at_once, one_by_one = start.with_columns(names, columns, np.arange(12)), start
    for number in range(12):
        one_by_one = one_by_one.with_columns([names[number]], columns[[number]], [number])
    np.testing.assert_array_equal(at_once.coefficients(), one_by_one.coefficients())


@pytest.mark.parametrize("r", [1, 7, 256, 257])
def test_of_equal_candidates_the_first(r: int) -> None:
    row = np.random.default_rng(r).normal(size=r)
    fit = SketchFit(row, {})
    assert fit.pursue(list("abcde"), np.array([np.zeros(r), row, row, -row, row]), 1) == [1]
    assert fit.pursue(list("abcde"), np.array([row / 2, row, row * 4, row, -row]), 5)[0] == 0


def test_candidates_of_zeros_come_last_and_more_than_all_is_all() -> None:
    rows = np.array([[0.0, 0.0], [0.0, 0.0], [1.0, 1.0], [1.0, 0.5]])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = SketchFit(np.array([1.0, 2.0]), {}).pursue(list("abcd"), rows, 9)
    assert sorted(found) == [0, 1, 2, 3]
    assert set(found[:2]) == {2, 3}
    assert SketchFit(np.zeros(2), {}).pursue(list("abcd"), rows, 2) == [0, 1]


def test_order_of_candidates_and_columns_does_not_matter() -> None:
    rng = np.random.default_rng(5)
    columns, target, *_ = example(5, 15, 20)
    rows = rng.normal(size=(10, 20))
    stored, fresh = [f"s{number}" for number in range(15)], [f"f{number}" for number in range(10)]
    weights = {name: float(rng.random()) for name in stored + fresh}
    fit = SketchFit(target, weights, bound=0.2).with_columns(stored, columns)
    expected, turned = fit.coefficients(), rng.permutation(15)
    mixed = SketchFit(target, weights, bound=0.2).with_columns(
        [stored[index] for index in turned], columns[turned]
    )
    scale = np.linalg.norm(columns, axis=1)
    np.testing.assert_allclose(
        (mixed.coefficients() * scale[turned]), (expected * scale)[turned], atol=1e-11
    )
    order = rng.permutation(10)
    shuffled = [fresh[index] for index in order]
    found = [shuffled[index] for index in mixed.pursue(shuffled, rows[order], 6)]
    assert found == [fresh[index] for index in fit.pursue(fresh, rows, 6)]


def test_float32_is_taken_as_it_is() -> None:
    columns, target, *_ = (part.astype(np.float32) for part in example(2, 9, 16))
    wide, narrow = (
        SketchFit(target.astype(kind), {"a": 1.0}).with_columns(
            list("abcdefghi"), columns.astype(kind)
        )
        for kind in (np.float64, np.float32)
    )
    np.testing.assert_array_equal(wide.coefficients(), narrow.coefficients())
    rows = columns[::-1] * np.float32(3)
    names = list("jklmnopqr")
    assert wide.pursue(names, rows.astype(np.float64), 5) == narrow.pursue(names, rows, 5)


def test_median_is_that_of_norms_above_zero() -> None:
    assert median_norm(np.array([[0, 0], [3, 4], [0, 1], [0, 0], [0, 2]])) == 2
    assert median_norm(np.zeros((2, 3))) == median_norm(np.zeros((0, 3))) == np.inf


def test_long_rows_are_shortened() -> None:
    rows = np.array(
        [[3.0, 4.0], [0.0, 0.0], [0.0, 1.0], [300.0, 400.0], [0, 0], [0, 0]], np.float32
    )
    short = shortened_to_median(rows, 3)
    np.testing.assert_array_equal(short[:3], rows[:3])
    np.testing.assert_allclose(short[3], [9, 12])
    assert rows[3, 0] == 300
    np.testing.assert_array_equal(shortened_to_median(np.zeros((2, 3)), 3), np.zeros((2, 3)))
    assert shortened_to_median(np.zeros((0, 3)), 3).shape == (0, 3)


THREADS = """
import numpy as np
from pncs_flower.fit import SketchFit
rng = np.random.default_rng(0)
names = [str(number) for number in range(100)]
rows = rng.normal(size=(100, 20_000)) + 2 * rng.normal(size=20_000)
fit = SketchFit(5 * rows[0] - 4 * rows[1], dict.fromkeys(names, 1.0), bound=0.5)
fit = fit.with_columns(names, rows)
found = fit.coefficients()
print(found.tobytes().hex(), (np.abs(found) == 0.5).sum())
print(fit.pursue(names, rng.normal(size=rows.shape) + rows, 3))
"""


def test_threads_change_no_bit() -> None:
    outputs = []
    for threads in ("1", "4"):
        own = {**os.environ, "OMP_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": threads}
        command = [sys.executable, "-c", THREADS]
        done = subprocess.run(command, env=own, capture_output=True, text=True, check=True)
        outputs.append(done.stdout)
    assert outputs[0] == outputs[1]
    assert int(outputs[0].split()[1]) > 1  # the bound was met
