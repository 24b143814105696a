"""Linear regression on data made from a seed; each client sees its own part of the inputs."""

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float32]

SIZE = 20
EXAMPLES = 50


def load_data(client: int) -> tuple[Vector, Vector]:
    """Return a client's inputs, shape (50, 20), and targets, shape (50,)."""
    rng = np.random.default_rng(client)
    # Inputs of one client vary along a few axes only, so no client can find all of the weights.
    spread = np.where(np.arange(SIZE) % 5 == client % 5, 1.0, 0.1)
    inputs = rng.normal(size=(EXAMPLES, SIZE)) * spread
    targets = inputs @ true_weights() + 0.1 * rng.normal(size=EXAMPLES)
    return inputs.astype(np.float32), targets.astype(np.float32)


def true_weights() -> Vector:
    """Return the weights that the data is made with."""
    return np.random.default_rng(1000).normal(size=SIZE).astype(np.float32)


def train(weights: Vector, inputs: Vector, targets: Vector, lr: float, steps: int = 20) -> Vector:
    """Return the weights after some steps of gradient descent on half the mean squared error."""
    for _ in range(steps):
        errors = inputs @ weights - targets
        weights = (weights - lr * (errors @ inputs) / len(targets)).astype(np.float32)
    return weights


def loss(weights: Vector, inputs: Vector, targets: Vector) -> float:
    """Return half the mean squared error."""
    return float(np.mean((inputs @ weights - targets) ** 2) / 2)
