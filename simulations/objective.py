"""What a model is trained for: to tell classes, or numbers; its loss, and its score."""

import math
from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor
from torch.nn.functional import cross_entropy, mse_loss

from .scores import ACCURACY, R2


class Objective(NamedTuple):
    """The loss that training makes small, and the score that a model is judged by."""

    score: str
    """Its key in a round's row."""
    loss: Callable[..., Tensor]
    """Of outputs and labels, with ``reduction="mean"`` or ``"sum"``."""


def _squared_error(outputs: Tensor, labels: Tensor, reduction: str = "mean") -> Tensor:
    """Return the squared error of outputs of shape (N, 1)."""
    return mse_loss(outputs.squeeze(1).float(), labels, reduction=reduction)


CLASSES = Objective(ACCURACY, cross_entropy)
NUMBERS = Objective(R2, _squared_error)


def objective_of(labels: Tensor) -> Objective:
    """Return the objective by the labels: classes are whole numbers, numbers are floats."""
    return NUMBERS if labels.is_floating_point() else CLASSES


def loss_function(outputs: Tensor, labels: Tensor) -> Tensor:
    """Return the mean loss, whichever it is."""
    return objective_of(labels).loss(outputs, labels)


def r_squared(mean_squared_error: float, labels: Tensor) -> float:
    """Return the part of the labels' variance that is told: 1 is all, 0 is what their mean tells.

    At least -1, which is also that of an error that is not finite; and 0 for labels that are all
    the same, unless they are told exactly.
    """
    variance = float(labels.double().var(correction=0))
    if variance == 0:
        return float(mean_squared_error == 0)
    told = 1 - mean_squared_error / variance
    return max(-1.0, told) if math.isfinite(told) else -1.0
