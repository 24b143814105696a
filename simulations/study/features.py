"""What may be said of two gradients: the features of the paper's study of client pairs."""

from collections.abc import Mapping
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from pncs_flower.similarity import pairwise_cosine

_ORDERS = (1, 2, 3, 4)

FEATURES = (
    *(f"norm sum {p}" for p in _ORDERS),
    *(f"distance {p}" for p in _ORDERS),
    *(f"cos {p}" for p in _ORDERS),
    "kurtosis sum",
    "covariance",
)
"""Names of the features: |g|_p + |g'|_p, |g - g'|_p and cos_p for p = 1 to 4, Kurt[g] + Kurt[g'],
Cov(g, g')."""

Vector = NDArray[np.float64]


def client_pairs(num_clients: int) -> NDArray[np.int64]:
    """Return every two clients, shape (pairs, 2), the smaller first, in lexical order."""
    return np.array(list(combinations(range(num_clients), 2)), dtype=np.int64).reshape(-1, 2)


def pair_features(gradients: NDArray[np.floating]) -> Mapping[str, Vector]:
    """Compute the features of PNCS, arXiv:2506.15923, section V-B, for every two clients."""
    values = np.asarray(gradients, dtype=np.float64)
    pairs = client_pairs(len(values))
    first, second = pairs.T
    found: dict[str, Vector] = {}
    for p in _ORDERS:
        norms = _norms(values, p)
        found[f"norm sum {p}"] = norms[first] + norms[second]
        # Pair by pair: all differences at once would not fit into memory.
        found[f"distance {p}"] = np.array([_norms(values[[i]] - values[j], p)[0] for i, j in pairs])
        found[f"cos {p}"] = np.asarray(pairwise_cosine(values, p))[first, second]
    centred = values - values.mean(axis=1, keepdims=True)
    variance = (centred**2).mean(axis=1)
    fourth = (centred**4).mean(axis=1)
    kurtosis = np.divide(fourth, variance**2, out=np.zeros(len(values)), where=variance > 0)
    found["kurtosis sum"] = kurtosis[first] + kurtosis[second]
    found["covariance"] = (centred @ centred.T / values.shape[1])[first, second]
    return found


def _norms(rows: Vector, p: int) -> Vector:
    magnitudes = np.abs(rows)
    powers = magnitudes.copy()
    for _ in range(p - 1):
        powers *= magnitudes
    norms: Vector = powers.sum(axis=1) ** (1 / p)
    return norms
