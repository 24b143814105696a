"""Every pair of clients tried in every round: the observations behind the paper's table 1."""

from collections.abc import Mapping
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

OBSERVED = (*FEATURES, "accuracy", "loss")
"""What is seen of every pair in every round: features, and how good a model it makes."""

Observations = Mapping[str, NDArray[np.float64]]
"""The values of each of `OBSERVED`, of one run with the shape (rounds, pairs)."""

_Examples = tuple[Tensor, Tensor]


def observe_pairs(config: Config, num_clients: int) -> Observations:
    """Train softmax regression, and try every pair of clients in every round."""
    # For each pair the model w - lr (g + g') / 2 is judged (PNCS, arXiv:2506.15923, section V-B).
    # The next round starts from w minus lr times the mean gradient of all clients (section
    # III-B); the paper does not say from which of the many models it goes on.
    inputs = load_inputs(config)
    model = initial_model(config, inputs)
    if not inputs.num_classes:
        raise ValueError(f"dataset = {config.dataset!r} has no classes, which the study is of")
    if [name.rpartition(".")[2] for name, _ in model.named_parameters()] != ["weight", "bias"]:
        raise ValueError(
            f"model = {config.model!r} trains several layers, but the study is of one: choose "
            "linear, or vgg16 with trainable-layers = classifier.6"
        )
    parts = inputs.divide(config, num_clients)
    clients = [inputs.train_tensors(part) for part in parts]
    test = inputs.test_tensors()
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # sums depend on it
    try:
        rounds = [_one_round(model, clients, test, config) for _ in range(config.num_rounds)]
    finally:
        torch.set_num_threads(before)
    return {name: np.stack([each[name] for each in rounds]) for name in OBSERVED}


def _one_round(
    model: nn.Module, clients: list[_Examples], test: _Examples, config: Config
) -> Observations:
    examples, labels = test
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
    found = {"accuracy": np.array(accuracies), "loss": np.array(losses)}
    return {**pair_features(flat.numpy()), **found}


def write_observations(path: Path, seen: Observations) -> None:
    """Write a file of observations, whole or not at all."""
    features = np.stack([seen[name] for name in FEATURES])
    judged = {name: seen[name] for name in ("accuracy", "loss")}
    with replacing(path) as file:
        np.savez(file, allow_pickle=False, features=features, **judged)


def read_observations(path: Path) -> Observations:
    """Read what `write_observations` wrote."""
    try:
        with np.load(path, allow_pickle=False) as file:
            values = [*file["features"], file["accuracy"], file["loss"]]
        return dict(zip(OBSERVED, values, strict=True))
    except (OSError, KeyError, TypeError, ValueError, EOFError, BadZipFile) as error:
        raise ValueError(f"{path} is damaged ({error}): delete it and run again") from None
