"""Every pair of clients tried in every round: the observations behind the paper's table 1."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from pncs_flower.clients.training import full_batch_gradient
from pncs_flower.files import replacing

from ..config import Config
from ..task import initial_model, load_inputs
from .features import FEATURES, client_pairs, pair_features

__all__ = ["Observations", "observe_pairs", "read_observations", "write_observations"]


@dataclass(frozen=True)
class Observations:
    """What was seen in one run of a study."""

    features: Mapping[str, NDArray[np.float64]]
    accuracy: NDArray[np.float64]
    loss: NDArray[np.float64]


def observe_pairs(config: Config, num_clients: int) -> Observations:
    """Train softmax regression on given features, and try every pair of clients in every round.

    The gradients of all clients' examples are taken at the current weights w, and for each pair
    the model w - lr (g + g') / 2 is judged (PNCS, arXiv:2506.15923, section V-B). The next round
    starts from w minus lr times the mean gradient of all clients (section III-B); the paper does
    not say from which of the many models it goes on.
    """
    inputs = load_inputs(config)
    model = initial_model(config, inputs)
    if [name.rpartition(".")[2] for name, _ in model.named_parameters()] != ["weight", "bias"]:
        raise ValueError(
            f"model = {config.model!r} trains several layers, but the study is of one: choose "
            "linear, or vgg16 with trainable-layers = classifier.6"
        )
    parts = inputs.divide(config, num_clients)
    clients = [inputs.train_tensors(part) for part in parts]
    examples, labels = inputs.test_tensors()
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # sums depend on it
    try:
        rounds = [
            _one_round(model, clients, examples, labels, config) for _ in range(config.num_rounds)
        ]
    finally:
        torch.set_num_threads(before)
    features, accuracy, loss = zip(*rounds, strict=True)
    return Observations(
        {name: np.stack([each[name] for each in features]) for name in FEATURES},
        np.array(accuracy),
        np.array(loss),
    )


def _one_round(
    model: nn.Module,
    clients: list[tuple[Tensor, Tensor]],
    examples: Tensor,
    labels: Tensor,
    config: Config,
) -> tuple[Mapping[str, NDArray[np.float64]], list[float], list[float]]:
    gradients = [full_batch_gradient(model, own, config.seed) for own in clients]
    accuracies, losses = [], []
    with torch.no_grad():
        # One layer's logits are linear in its weights: a product for each client serves all pairs.
        start = model(examples)
        inputs = examples.flatten(1)
        moves = [inputs @ weight.T + bias for weight, bias in (g.values() for g in gradients)]
        for i, j in client_pairs(len(clients)):
            logits = start - config.lr / 2 * (moves[i] + moves[j])
            accuracies.append(float((logits.argmax(1) == labels).double().mean()))
            losses.append(float(cross_entropy(logits, labels)))
        for name, weights in model.named_parameters():
            mean = reduce(torch.add, (gradient[name] for gradient in gradients)) / len(clients)
            weights.sub_(mean, alpha=config.lr)
    flat = torch.stack([torch.cat([v.flatten() for v in g.values()]) for g in gradients])
    return pair_features(flat.numpy()), accuracies, losses


def write_observations(path: Path, observations: Observations) -> None:
    """Write a file of observations, whole or not at all."""
    with replacing(path) as file:
        np.savez(
            file,
            allow_pickle=False,
            features=np.stack([observations.features[name] for name in FEATURES]),
            accuracy=observations.accuracy,
            loss=observations.loss,
        )


def read_observations(path: Path) -> Observations:
    """Read what `write_observations` wrote."""
    try:
        with np.load(path, allow_pickle=False) as file:
            features, accuracy, loss = (file[name] for name in ("features", "accuracy", "loss"))
        by_name = dict(zip(FEATURES, features, strict=True))
    except (OSError, KeyError, TypeError, ValueError, EOFError, BadZipFile) as error:
        raise ValueError(f"{path} is damaged ({error}): delete it and run again") from None
    return Observations(by_name, accuracy, loss)
