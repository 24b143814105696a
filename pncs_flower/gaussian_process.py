"""The Gaussian process behind FedCor: how the clients' loss changes vary together."""

import numpy as np

_BETA1, _BETA2, _EPSILON = 0.9, 0.999, 1e-8


def covariance(embeddings: np.ndarray, noise: float) -> np.ndarray:
    """Return X^T X + noise^2 I, shape (K, K), of embeddings X with a column for each client."""
    return np.asarray(embeddings.T @ embeddings + noise**2 * np.eye(embeddings.shape[1]))


def condition(sigma: np.ndarray, index: int) -> np.ndarray:
    """Return the covariance given the loss change of one client, which has a variance above 0."""
    return np.asarray(sigma - np.outer(sigma[:, index], sigma[index]) / sigma[index, index])


def likelihood_gradient(
    embeddings: np.ndarray, samples: np.ndarray, weights: np.ndarray, noise: float
) -> np.ndarray:
    """Return the gradient of the weighted negative log likelihood of samples, shape (n, K)."""
    # By Woodbury's identity only the d x d matrix M = X X^T + s^2 I is inverted, so that many
    # clients cost no more than a long sum. NaN: a client that told none is left out.
    gradient = np.zeros_like(embeddings)
    told = ~np.isnan(samples)
    for pattern in np.unique(told, axis=0):
        rows = (told == pattern).all(axis=1)
        x, y, w = embeddings[:, pattern], samples[rows][:, pattern], weights[rows]
        small = x @ x.T + noise**2 * np.eye(len(embeddings))
        projected = np.linalg.solve(small, x)  # M^-1 X = X Sigma^-1
        loadings = projected @ y.T  # X Sigma^-1 y, shape (d, n)
        solved = (y.T - x.T @ loadings) / noise**2  # Sigma^-1 y, shape (count, n)
        gradient[:, pattern] += float(w.sum()) * projected - (loadings * w) @ solved.T
    return gradient


def fit(
    embeddings: np.ndarray,
    samples: np.ndarray,
    weights: np.ndarray,
    *,
    noise: float,
    steps: int,
    learning_rate: float,
) -> np.ndarray:
    """Return embeddings after some steps of Adam (Kingma and Ba 2015) on the likelihood."""
    x = embeddings.copy()
    mean, square = np.zeros_like(x), np.zeros_like(x)
    for step in range(1, steps + 1):
        gradient = likelihood_gradient(x, samples, weights, noise)
        mean = _BETA1 * mean + (1 - _BETA1) * gradient
        square = _BETA2 * square + (1 - _BETA2) * gradient**2
        scale = np.sqrt(square / (1 - _BETA2**step)) + _EPSILON
        x -= learning_rate * mean / (1 - _BETA1**step) / scale
    return x
