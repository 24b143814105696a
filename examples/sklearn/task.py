"""The model and the data of each client: plain scikit-learn."""

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier

Examples = tuple[NDArray[np.float64], NDArray[np.int64]]
Weights = list[NDArray[np.float64]]

CLASSES = np.arange(10)


def initial_weights() -> Weights:
    """Return coefficients and intercepts of logistic regression, shapes (10, 64) and (10,)."""
    return [np.zeros((10, 64)), np.zeros(10)]


def make_model(weights: Weights) -> SGDClassifier:
    """Return logistic regression with these weights."""
    model = SGDClassifier(loss="log_loss", alpha=1e-3, random_state=0)
    # scikit-learn makes the arrays in the first fit.
    model.partial_fit(np.zeros((10, 64)), CLASSES, classes=CLASSES)
    model.coef_, model.intercept_ = (array.copy() for array in weights)
    return model


def load_data(client: int, num_clients: int) -> Examples:
    """Return a client's digits: of five kinds only, since real clients are not alike either."""
    images, labels = load_digits(return_X_y=True)
    train = np.arange(len(labels)) % 5 != 0
    by_label = np.argsort(labels[train], kind="stable")
    mine = np.concatenate(np.array_split(by_label, 5 * num_clients)[client::num_clients])
    return images[train][mine] / 16, labels[train][mine]


def load_test_data() -> Examples:
    """Return the digits that no client has."""
    images, labels = load_digits(return_X_y=True)
    return images[::5] / 16, labels[::5]
