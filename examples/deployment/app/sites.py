"""The sites' data and the model: logistic regression on points of two classes, in NumPy."""

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

__all__ = ["accuracy", "gradient", "initial_arrays", "points"]

NUM_FEATURES, NUM_POINTS = 8, 200


def points(site: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return a site's points, shape (200, 8), and classes, shape (200,); each site sees a part."""
    rng = np.random.default_rng([0, site])
    features = rng.normal(loc=rng.normal(size=NUM_FEATURES), size=(NUM_POINTS, NUM_FEATURES))
    truth = np.random.default_rng(1).normal(size=NUM_FEATURES)
    return features.astype(np.float32), (features @ truth > 0).astype(np.float32)


def initial_arrays() -> ArrayRecord:
    """Return the model before training."""
    weight, bias = np.zeros(NUM_FEATURES, np.float32), np.zeros(1, np.float32)
    return ArrayRecord({"linear.weight": Array(weight), "linear.bias": Array(bias)})


def gradient(model: ArrayRecord, site: int) -> dict[str, NDArray[np.float32]]:
    """Return the gradient of the mean log loss on a site's points."""
    features, classes = points(site)
    excess = 1 / (1 + np.exp(-_scores(model, features))) - classes
    return {
        "linear.weight": (excess @ features / NUM_POINTS).astype(np.float32),
        "linear.bias": excess.mean(keepdims=True).astype(np.float32),
    }


def accuracy(model: ArrayRecord, site: int) -> float:
    """Return the share of a site's points that the model puts into the right class."""
    features, classes = points(site)
    return float(np.mean((_scores(model, features) > 0) == classes))


def _scores(model: ArrayRecord, features: NDArray[np.float32]) -> NDArray[np.float32]:
    scores: NDArray[np.float32] = features @ model["linear.weight"].numpy()
    return scores + model["linear.bias"].numpy()
