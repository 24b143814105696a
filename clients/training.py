"""How a PyTorch client computes: local SGD, a full-batch gradient, a mean loss."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from flwr.app import Context
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from .device import compute_in
from .pieces import Examples, Pieces

__all__ = ["LocalTraining", "LossFunction", "full_batch_gradient", "local_sgd", "mean_loss"]

LossFunction = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class LocalTraining:
    """How a client trains, as the run config says it.

    Attributes
    ----------
    lr : float
        Learning rate of SGD.
    momentum : float
        Momentum of SGD, started anew in each round.
    local_epochs : int
        Passes over the local examples in each round.
    batch_size : int
        Examples per step; 0 takes all of them in one step. A last step with one example is joined
        to the one before it where the model's batch normalization would refuse it.
    """

    lr: float = 0.1
    momentum: float = 0.0
    local_epochs: int = 1
    batch_size: int = 32

    def __post_init__(self) -> None:
        for name, value, least in (
            ("momentum", self.momentum, 0),
            ("local-epochs", self.local_epochs, 1),
            ("batch-size", self.batch_size, 0),
        ):
            if not least <= value < math.inf:
                raise ValueError(f"{name} is {value}, but must be finite and at least {least}")
        if not 0 < self.lr < math.inf:
            raise ValueError(f"lr is {self.lr}, but must be finite and greater than 0")

    @classmethod
    def from_context(cls, context: Context) -> "LocalTraining":
        """Read the run config's lr, momentum, local-epochs and batch-size."""
        config = context.run_config
        return cls(
            lr=float(config.get("lr", cls.lr)),
            momentum=float(config.get("momentum", cls.momentum)),
            local_epochs=int(config.get("local-epochs", cls.local_epochs)),
            batch_size=int(config.get("batch-size", cls.batch_size)),
        )


def local_sgd(
    model: nn.Module,
    examples: Examples,
    training: LocalTraining,
    seed: int,
    loss_function: LossFunction = cross_entropy,
    precision: str = "float32",
) -> float:
    """Train a model in place by SGD.

    Parameters
    ----------
    model : nn.Module
        On the device of the examples.
    examples : tuple of Tensor
        Inputs and targets, of the same length n >= 1.
    training : LocalTraining
        Learning rate, momentum, epochs and batch size.
    seed : int
        Fixes the order of the examples, and dropout.
    loss_function : callable (default: cross entropy)
        Mean loss of outputs and targets.
    precision : {"float32", "bfloat16"} (default: "float32")
        What forward passes compute in; see `compute_in`.

    Returns
    -------
    float
        Mean loss over all steps, each at the weights before it.
    """
    size, device = len(examples[0]), examples[0].device
    batch_size = training.batch_size or size
    velocity: dict[nn.Parameter, Tensor] = {}
    order = torch.Generator().manual_seed(seed)
    _seed(seed, device)
    model.train()
    pieces = Pieces(model, examples)
    total = torch.zeros((), device=device)
    for _ in range(training.local_epochs):
        for batch in _batches(examples, batch_size, order, pieces):
            model.zero_grad()
            # In pieces, as in full_batch_gradient: a step on all examples is that gradient to the
            # bit, and no larger a piece than that is in memory or read twice.
            for inputs, targets in pieces.of(batch):
                with compute_in(precision, device):
                    loss = loss_function(model(inputs), targets)
                (loss * (len(inputs) / len(batch[0]))).backward()
                total += loss.detach() * len(inputs)
            _step(model, training, velocity)
    return float(total) / (size * training.local_epochs)


def _seed(seed: int, device: torch.device) -> None:
    # torch.manual_seed also notes a seed for GPUs not yet used, with the whole stack: more work
    # than a step of a small model, and kept for ever.
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)


@torch.no_grad()
def _step(model: nn.Module, training: LocalTraining, velocity: dict[nn.Parameter, Tensor]) -> None:
    """Do what torch.optim.SGD does, without what a new one costs in each round of each client."""
    for parameter in model.parameters():
        step = parameter.grad
        if step is None:
            continue
        if training.momentum:
            kept = velocity.get(parameter)
            step = step.clone() if kept is None else kept.mul_(training.momentum).add_(step)
            velocity[parameter] = step
        parameter.add_(step, alpha=-training.lr)


def _batches(
    examples: Examples, size: int, order: torch.Generator, pieces: Pieces
) -> Iterator[Examples]:
    inputs, targets = examples
    if size >= len(inputs):
        yield examples
        return
    indices = torch.randperm(len(inputs), generator=order).to(inputs.device)
    for chosen in indices.split(pieces.sizes(len(inputs), size)):
        yield inputs[chosen], targets[chosen]


def full_batch_gradient(
    model: nn.Module,
    examples: Examples,
    seed: int,
    loss_function: LossFunction = cross_entropy,
    precision: str = "float32",
) -> dict[str, Tensor]:
    """Return the gradient of the mean loss over all examples, at the model's weights.

    Parameters
    ----------
    model : nn.Module
        On the device of the examples. Its weights stay as they are; running statistics do not.
    examples : tuple of Tensor
        Inputs and targets, of the same length n >= 1.
    seed : int
        Fixes dropout.
    loss_function : callable (default: cross entropy)
        Mean loss of outputs and targets.
    precision : {"float32", "bfloat16"} (default: "float32")
        What forward passes compute in; see `compute_in`.

    Returns
    -------
    dict of str to Tensor
        One gradient for each entry of the model's state, under its name; zero for what is not
        trained. A tensor that has two names (tied weights) has its gradient under both.
    """
    size, device = len(examples[0]), examples[0].device
    _seed(seed, device)
    model.train()
    model.zero_grad()
    for inputs, targets in Pieces(model, examples).of(examples):
        with compute_in(precision, device):
            loss = loss_function(model(inputs), targets)
        (loss * (len(inputs) / size)).backward()
    gradient = {
        name: parameter.grad
        for name, parameter in model.named_parameters(remove_duplicate=False)
        if parameter.grad is not None
    }
    return {
        name: gradient.get(name, torch.zeros_like(entry))
        for name, entry in model.state_dict().items()
    }


@torch.no_grad()
def mean_loss(
    model: nn.Module,
    examples: Examples,
    loss_function: LossFunction = cross_entropy,
    precision: str = "float32",
) -> float:
    """Return the mean loss over examples, with the model in evaluation mode."""
    size, device = len(examples[0]), examples[0].device
    model.eval()
    total = torch.zeros((), device=device)
    for inputs, targets in Pieces(model, examples).of(examples):
        with compute_in(precision, device):
            loss = loss_function(model(inputs), targets)
        total += loss * len(inputs)
    return float(total) / size
