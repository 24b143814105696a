"""The Gaussian process against dense float64 computations."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import multivariate_normal

from pncs_flower.gaussian_process import condition, covariance, fit, likelihood_gradient

NOISE = 0.1


def example(seed: int, clients: int = 6, samples: int = 4) -> tuple[np.ndarray, ...]:
    """Return embeddings of 3 numbers, loss changes with gaps, and weights."""
    rng = np.random.default_rng(seed)
    changes = rng.normal(size=(samples, clients))
    changes[rng.random(changes.shape) < 0.2] = np.nan
    changes[0] = rng.normal(size=clients)
    return rng.normal(size=(3, clients)), changes, rng.random(samples)


def reference(x: np.ndarray, changes: np.ndarray, weights: np.ndarray) -> float:
    """Sum the log densities of what each round told."""
    sigma = x.T @ x + NOISE**2 * np.eye(x.shape[1])
    total = 0.0
    for sample, weight in zip(changes, weights, strict=True):
        told = np.flatnonzero(~np.isnan(sample))
        if len(told):
            process = multivariate_normal(cov=sigma[np.ix_(told, told)])
            total -= weight * process.logpdf(sample[told])
    return total


@pytest.mark.parametrize("clients", [1, 2, 6, 20])
def test_gradient_is_that_of_the_likelihood(clients: int) -> None:
    x, changes, weights = example(1, clients)
    gradient = likelihood_gradient(x, changes, weights, NOISE)
    step, expected = 1e-6, np.zeros_like(x)
    for place in np.ndindex(*x.shape):
        ends = []
        for sign in (1, -1):
            moved = x.copy()
            moved[place] += sign * step
            ends.append(reference(moved, changes, weights))
        expected[place] = (ends[0] - ends[1]) / (2 * step)
    # Central differences of values of some thousands, from an eigendecomposition: 1e-15 relative
    # noise of those, over 1e-6.
    np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-4)


@settings(deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 6))
def test_posterior_is_that_of_the_normal_distribution(seed: int, given_clients: int) -> None:
    # Conditioned one after the other, and by the Schur complement at once.
    sigma = covariance(np.random.default_rng(seed).normal(size=(4, 7)), NOISE)
    known = np.random.default_rng(seed).permutation(7)[:given_clients]
    stepwise = sigma
    for client in known:
        stepwise = condition(stepwise, client)
    inverse = np.linalg.inv(sigma[np.ix_(known, known)])
    direct = sigma - sigma[:, known] @ inverse @ sigma[known]
    np.testing.assert_allclose(stepwise, direct, atol=1e-9)


def test_fit_finds_the_covariance_of_many_samples() -> None:
    rng = np.random.default_rng(0)
    true = rng.normal(size=(2, 4))
    changes = rng.multivariate_normal(np.zeros(4), covariance(true, NOISE), size=1000)
    x = fit(
        rng.normal(size=(2, 4)),
        changes,
        np.ones(len(changes)),
        noise=NOISE,
        steps=700,
        learning_rate=0.05,
    )
    # Entries of up to about 2 from 1000 samples: a standard error of up to 2 sqrt(2 / 1000) = .09.
    np.testing.assert_allclose(covariance(x, NOISE), covariance(true, NOISE), atol=0.25)


def test_weight_of_zero_leaves_a_sample_out() -> None:
    x, changes, _ = example(3)
    with_it = fit(x, changes, np.array([1.0, 1, 1, 0]), noise=NOISE, steps=5, learning_rate=0.01)
    without = fit(x, changes[:3], np.ones(3), noise=NOISE, steps=5, learning_rate=0.01)
    np.testing.assert_allclose(with_it, without, atol=1e-12)


def test_client_that_told_nothing_keeps_its_embedding() -> None:
    x, changes, weights = example(4)
    changes[:, 2] = np.nan
    after = fit(x, changes, weights, noise=NOISE, steps=5, learning_rate=0.01)
    np.testing.assert_array_equal(after[:, 2], x[:, 2])
    assert not np.array_equal(after[:, 1], x[:, 1])
