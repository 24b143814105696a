"""Which pair of clients to choose, by logistic regression on what is said of their gradients."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Labels = Literal["min-max", "softmax"]
Vector = NDArray[np.float64]


@dataclass(frozen=True)
class PairModel:
    """A fitted model: sigma(w . x), with x the standardized features of a pair."""

    features: Sequence[str]
    means: Vector
    deviations: Vector
    weights: Vector

    def score(self, features: Mapping[str, Vector]) -> Vector:
        """Return w . x of each pair, shape (pairs,): the larger, the better the pair."""
        total = np.zeros(())
        for name, mean, deviation, weight in zip(
            self.features, self.means, self.deviations, self.weights, strict=True
        ):
            total = total + weight * (features[name] - mean) / deviation
        return total


def label_pairs(accuracies: Vector, labels: Labels) -> Vector:
    """Map accuracies to [0, 1] among the pairs of one round (section V-A)."""
    if labels == "softmax":
        powers = np.exp(accuracies - accuracies.max(axis=-1, keepdims=True))
        shares: Vector = powers / powers.sum(axis=-1, keepdims=True)
        return shares
    low, high = accuracies.min(axis=-1, keepdims=True), accuracies.max(axis=-1, keepdims=True)
    spread = np.where(high > low, high - low, 1)
    scaled: Vector = np.where(high > low, (accuracies - low) / spread, 0.5)
    return scaled


def fit_pair_model(
    features: Mapping[str, Vector], labels: Vector, names: Sequence[str]
) -> PairModel:
    """Minimise the binary cross-entropy with soft labels (section V-A)."""
    from sklearn.linear_model import LogisticRegression

    columns = np.stack([features[name].ravel() for name in names], axis=1)
    means, deviations = columns.mean(axis=0), columns.std(axis=0)
    deviations[deviations == 0] = 1
    standard = (columns - means) / deviations
    good = labels.ravel()
    # It knows no soft labels: each pair is there twice, as good with weight y, as bad with 1 - y,
    # which has the same loss. Its penalty of the weights stays: some features are collinear. Its
    # default solver ends long before their weights are settled: with softmax labels in 11 steps.
    model = LogisticRegression(solver="newton-cholesky", tol=1e-8).fit(
        np.concatenate([standard, standard]),
        np.repeat([1, 0], len(good)),
        sample_weight=np.concatenate([good, 1 - good]),
    )
    return PairModel(names, means, deviations, model.coef_[0])


def relative_losses(losses: Vector, scores: Vector) -> Vector:
    """Return how far the best-scored pair is from the best one, 1 for the worst."""
    best = scores.argmax(axis=-1)[..., None]
    return relative(losses, np.take_along_axis(losses, best, axis=-1)[..., 0])


def relative(losses: Vector, loss: Vector) -> Vector:
    """Return where a loss lies between the least of all pairs, 0, and the largest, 1."""
    least, largest = losses.min(axis=-1), losses.max(axis=-1)
    spread = np.where(largest > least, largest - least, 1)
    found: Vector = (loss - least) / spread
    return found
