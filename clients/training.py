"""How a PyTorch client computes: local SGD, a full-batch gradient, a mean loss."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import repeat

import torch
from flwr.app import Context
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.modules.batchnorm import _BatchNorm
from torch.random import fork_rng

from .device import compute_in

Examples = tuple[Tensor, Tensor]  # inputs and targets, of the same length n >= 1
LossFunction = Callable[[Tensor, Tensor], Tensor]  # mean loss of outputs and targets

# Examples per pass where only a sum over all of them is wanted: bounds memory, not the result.
CHUNK = 1024


@dataclass(frozen=True)
class LocalTraining:
    """How a client trains: SGD, with the momentum started anew in each round."""

    lr: float = 0.1
    momentum: float = 0.0
    local_epochs: int = 1  # passes over the local examples in each round
    batch_size: int = 32  # examples per step; 0: all

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
            local_epochs=_whole("local-epochs", config.get("local-epochs", cls.local_epochs)),
            batch_size=_whole("batch-size", config.get("batch-size", cls.batch_size)),
        )


def _whole(name: str, value: bool | int | float | str | bytes) -> int:
    """Return a setting that is a whole number: half an epoch is not to become none."""
    if not float(value).is_integer():
        raise ValueError(f"{name} is {value!r}, but must be a whole number")
    return int(value)


def local_sgd(
    model: nn.Module,
    examples: Examples,
    training: LocalTraining,
    seed: int,
    loss_function: LossFunction = cross_entropy,
    precision: str = "float32",
) -> float:
    """Train a model in place; return the mean loss over all steps, each at the weights before."""
    size, device = len(examples[0]), examples[0].device
    velocity: dict[nn.Parameter, Tensor] = {}
    _seed(seed, device)
    model.train()
    parameters = list(model.parameters())
    pieces = Pieces(model, examples)
    total = torch.zeros((), device=device)
    for batch in _batches(examples, training, seed, pieces):
        for parameter in parameters:
            parameter.grad = None
        # In pieces, as in full_batch_gradient: a step on all examples is that gradient to the
        # bit, and no larger a piece than that is in memory or read twice.
        for loss, count in _losses(model, batch, pieces, loss_function, precision):
            _add_gradient(loss, count / len(batch[0]))
            total += loss.detach() * count
        _step(parameters, training, velocity)
    return float(total) / (size * training.local_epochs)


def full_batch_gradient(
    model: nn.Module,
    examples: Examples,
    seed: int,
    loss_function: LossFunction = cross_entropy,
    precision: str = "float32",
) -> dict[str, Tensor]:
    """Return the gradient of the mean loss, by the names of the model's state."""
    # Zero for what is not trained, and under both names of tied weights. Running statistics
    # change.
    size, device = len(examples[0]), examples[0].device
    _seed(seed, device)
    model.train()
    model.zero_grad()
    for loss, count in _losses(model, examples, Pieces(model, examples), loss_function, precision):
        _add_gradient(loss, count / size)
    return {
        name: torch.zeros_like(entry) if entry.grad is None else entry.grad
        for name, entry in model.state_dict(keep_vars=True).items()
    }


@torch.no_grad()
def mean_loss(
    model: nn.Module,
    examples: Examples,
    loss_function: LossFunction = cross_entropy,
    precision: str = "float32",
) -> float:
    """Return the mean loss over examples, with the model in evaluation mode."""
    model.eval()
    total = torch.zeros((), device=examples[0].device)
    for loss, count in _losses(model, examples, Pieces(model, examples), loss_function, precision):
        total += loss * count
    return float(total) / len(examples[0])


class Pieces:
    """The pieces in which a model, in the mode that it is in, is given all examples or some."""

    # They are no part of the client's examples, since a model may work in place on what it is given
    # (``nn.ReLU(inplace=True)`` as the first layer), and those are kept for the next pass, round
    # and client. Nor are they views made by `split`, to which PyTorch lets no model add in place.

    def __init__(self, model: nn.Module, examples: Examples) -> None:
        self._model = model
        self._inputs = examples[0]

    def of(self, examples: Examples) -> Iterator[Examples]:
        """Yield copies of some of the examples, at most `CHUNK` of them at a time, or one more."""
        inputs, targets = examples
        sizes = self.sizes(len(inputs), CHUNK)
        if len(sizes) == 1:  # a batch has been copied out of them
            yield (inputs.clone(), targets.clone()) if inputs is self._inputs else examples
            return
        # One place for all, each over the one before it: memory that is asked for anew takes longer
        # than the pass of a small model.
        place = torch.empty_like(inputs[: max(sizes)])
        for some, answers in zip(inputs.split(sizes), targets.split(sizes), strict=True):
            # Detached: a piece to which a model has added in place has a graph that is spent.
            yield place.detach()[: len(some)].copy_(some), answers.clone()

    def sizes(self, count: int, size: int) -> list[int]:
        """Return the sizes of pieces of at most ``size`` that make up ``count``."""
        # A last piece of one example is joined to the one before it where the model would refuse
        # it.
        whole, rest = divmod(count, size)
        sizes = [size] * whole + [rest] * bool(rest)
        if 1 in sizes and self._refuses_one:
            if 1 in (count, size):
                problem = "there is one example" if count == 1 else "batch-size is 1"
                remedy = (
                    "leave this client out (eligible=)" if count == 1 else "set it to 2 or more"
                )
                raise ValueError(
                    f"{problem}, but the model's batch normalization needs two values or more of "
                    f"each channel: {remedy}, or normalize otherwise (GroupNorm, LayerNorm)"
                )
            sizes[-2:] = [size + 1]
        return sizes

    @cached_property
    def _refuses_one(self) -> bool:
        """Whether one example leaves batch normalization with one value for a channel."""
        norms = [
            module
            for module in self._model.modules()
            if isinstance(module, _BatchNorm) and (module.training or module.running_mean is None)
        ]
        if not norms:
            return False
        seen: list[bool] = []

        def look(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            seen.append(inputs[0].shape[2:].numel() == 1)

        hooks = [norm.register_forward_pre_hook(look) for norm in norms]
        training, device = self._model.training, self._inputs.device
        try:
            # Nothing of it is to be seen: neither in statistics nor in what is drawn at random.
            with torch.no_grad(), fork_rng([device] if device.type == "cuda" else []):
                self._model.eval()
                self._model(self._inputs[[0, -1]])  # a copy of two, or twice of the only one
        finally:
            for hook in hooks:
                hook.remove()
            self._model.train(training)
        return any(seen)


def _losses(
    model: nn.Module, some: Examples, pieces: Pieces, loss_function: LossFunction, precision: str
) -> Iterator[tuple[Tensor, int]]:
    """Yield the mean loss of each piece of some examples, and how many are in it."""
    for inputs, targets in pieces.of(some):
        with compute_in(precision, inputs.device):
            loss = loss_function(model(inputs), targets)
        yield loss, len(inputs)


def _batches(
    examples: Examples, training: LocalTraining, seed: int, pieces: Pieces
) -> Iterator[Examples]:
    """Yield the examples of each step: in every epoch all of them, in another order."""
    inputs, targets = examples
    size = len(inputs)
    if not 0 < training.batch_size < size:
        yield from repeat(examples, training.local_epochs)
        return
    order = torch.Generator().manual_seed(seed)
    for _ in range(training.local_epochs):
        indices = torch.randperm(size, generator=order).to(inputs.device)
        for chosen in indices.split(pieces.sizes(size, training.batch_size)):
            yield inputs[chosen], targets[chosen]


def _seed(seed: int, device: torch.device) -> None:
    # torch.manual_seed also notes a seed for GPUs not yet used, with the whole stack: more work
    # than a step of a small model, and kept for ever.
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)


def _add_gradient(loss: Tensor, share: float) -> None:
    """Add the gradient of a share of a loss to those of the parameters."""
    (loss if share == 1 else loss * share).backward()  # a product takes as long as a small layer


@torch.no_grad()
def _step(
    parameters: Sequence[nn.Parameter],
    training: LocalTraining,
    velocity: dict[nn.Parameter, Tensor],
) -> None:
    """Do what torch.optim.SGD does, without what a new one costs in each round of each client."""
    for parameter in parameters:
        step = parameter.grad
        if step is None:
            continue
        if training.momentum:
            kept = velocity.get(parameter)
            step = step.clone() if kept is None else kept.mul_(training.momentum).add_(step)
            velocity[parameter] = step
        parameter.add_(step, alpha=-training.lr)
