"""The reference PyTorch client: local SGD or a full-batch gradient, seeded by round and client."""

import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.modules.batchnorm import _BatchNorm
from torch.random import fork_rng

from pncs_flower.protocol import LOSS, MAX_EXAMPLES, NUM_EXAMPLES
from pncs_flower.randomness import derive_seed

from .device import choose_device, compute_in, releasing_memory
from .identity import client_key
from .summary import SummaryMod

__all__ = ["LocalTraining", "full_batch_gradient", "local_sgd", "mean_loss", "pytorch_client"]

Examples = tuple[Tensor, Tensor]
LossFunction = Callable[[Tensor, Tensor], Tensor]

CHUNK = 1024
"""Examples per pass where only a sum over all of them is wanted: bounds memory, not the result."""


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
            if value < least:
                raise ValueError(f"{name} is {value}, but must be at least {least}")
        if not self.lr > 0:
            raise ValueError(f"lr is {self.lr}, but must be greater than 0")

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
    parts = _Parts(model, examples)
    total = torch.zeros((), device=device)
    for _ in range(training.local_epochs):
        for batch, answers in _batches(examples, batch_size, order, parts):
            model.zero_grad()
            # In pieces, as in full_batch_gradient: a step on all examples is that gradient to the
            # bit, and no larger a piece than that is in memory or read twice.
            sizes = parts.sizes(len(batch), CHUNK)
            for chunk, wanted in zip(batch.split(sizes), answers.split(sizes), strict=True):
                with compute_in(precision, device):
                    loss = loss_function(model(chunk), wanted)
                (loss * (len(chunk) / len(batch))).backward()
                total += loss.detach() * len(chunk)
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


class _Parts:
    """The sizes of the parts that examples are divided into.

    A last part of one example is joined to the one before it where the model has batch
    normalization that would be left with one value for each channel, and refuse it. It is known
    from two examples, which are passed through the model in evaluation mode, if there is such a
    part at all; all other models see the parts that they always saw.

    Parameters
    ----------
    model : nn.Module
        In training mode.
    examples : tuple of Tensor
        All of a client.
    """

    def __init__(self, model: nn.Module, examples: Examples) -> None:
        self._model = model
        self._inputs = examples[0]

    def sizes(self, count: int, size: int) -> list[int]:
        """Return the sizes of parts of at most ``size``, or one more, that make up ``count``."""
        whole, rest = divmod(count, size)
        sizes = [size] * whole + [rest] * bool(rest)
        if rest == 1 and whole and size > 1 and self._refuses_one:
            sizes[-2:] = [size + 1]
        return sizes

    @cached_property
    def _refuses_one(self) -> bool:
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
        device = self._inputs.device
        try:
            # Nothing of it is to be seen: neither in statistics nor in what is drawn at random.
            with torch.no_grad(), fork_rng([device] if device.type == "cuda" else []):
                self._model.eval()
                self._model(self._inputs[:2].clone())
        finally:
            for hook in hooks:
                hook.remove()
            self._model.train()
        return any(seen)


def _batches(
    examples: Examples, size: int, order: torch.Generator, parts: _Parts
) -> Iterator[Examples]:
    inputs, targets = examples
    if size >= len(inputs):
        yield examples
        return
    indices = torch.randperm(len(inputs), generator=order).to(inputs.device)
    for chosen in indices.split(parts.sizes(len(inputs), size)):
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
        On the device of the examples. Its weights stay as they are.
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
    inputs, targets = examples
    _seed(seed, inputs.device)
    model.train()
    model.zero_grad()
    sizes = _Parts(model, examples).sizes(len(inputs), CHUNK)
    for chunk, answer in zip(inputs.split(sizes), targets.split(sizes), strict=True):
        with compute_in(precision, inputs.device):
            loss = loss_function(model(chunk), answer)
        (loss * (len(chunk) / len(inputs))).backward()
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
    inputs, targets = examples
    model.eval()
    total = torch.zeros((), device=inputs.device)
    for chunk, answer in zip(inputs.split(CHUNK), targets.split(CHUNK), strict=True):
        with compute_in(precision, inputs.device):
            loss = loss_function(model(chunk), answer)
        total += loss * len(chunk)
    return float(total) / len(inputs)


def pytorch_client(
    make_model: Callable[[Context], nn.Module],
    load_examples: Callable[[Context], Examples],
    loss_function: LossFunction = cross_entropy,
) -> ClientApp:
    """Make a ClientApp that trains a PyTorch model by local SGD and answers every pre-round.

    The run config's ``lr``, ``momentum``, ``local-epochs`` and ``batch-size`` say how it trains
    (`LocalTraining`), ``device`` where (`choose_device`), ``precision`` in what forward passes
    compute (``"float32"``, the default, or ``"bfloat16"``), ``seed`` fixes all randomness together
    with the round and the client's key, and ``threads`` (default: 1) how many CPU threads take
    part: float sums depend on it, so bits match only where it is the same. 0 leaves it to PyTorch.

    Parameters
    ----------
    make_model : callable
        ``make_model(context) -> nn.Module``, on the CPU. Its weights are overwritten.
    load_examples : callable
        ``load_examples(context) -> (inputs, targets)``, this client's training data.
    loss_function : callable (default: cross entropy)
        Mean loss of outputs and targets.

    Returns
    -------
    ClientApp
        Its train function replies with the weights and the metrics ``num-examples``,
        ``train-loss``, and ``uniform-weight``, which is 1 for every client: a strategy that
        weighs by it takes the plain mean. Its evaluate function replies with the ``loss`` at the
        weights it is sent, over the same training examples.
    """
    parsed = _LastParsed()

    def prepare(message: Message, context: Context) -> tuple[nn.Module, Examples, int, str]:
        device = choose_device(str(context.run_config.get("device", "auto")))
        arrays = next(iter(message.content.array_records.values()))
        model = make_model(context)
        model.load_state_dict(parsed.state(arrays))
        inputs, targets = load_examples(context)
        if len(inputs) == 0:
            raise ValueError(f"client {client_key(context)} has no training examples")
        config = next(iter(message.content.config_records.values()), ConfigRecord())
        seed = derive_seed(
            int(context.run_config.get("seed", 0)),
            "local training",
            int(str(config.get("server-round", 0))),
            client_key(context),
        )
        precision = str(context.run_config.get("precision", "float32"))
        return model.to(device), (inputs.to(device), targets.to(device)), seed, precision

    def compute_gradient(message: Message, context: Context) -> ArrayRecord:
        model, examples, seed, precision = prepare(message, context)
        values = full_batch_gradient(model, examples, seed, loss_function, precision)
        return ArrayRecord({name: value.cpu() for name, value in values.items()})

    def compute_update(message: Message, context: Context) -> RecordDict:
        model, examples, seed, precision = prepare(message, context)
        training = LocalTraining.from_context(context)
        loss = local_sgd(model, examples, training, seed, loss_function, precision)
        arrays = ArrayRecord({name: value.cpu() for name, value in model.state_dict().items()})
        metrics = MetricRecord(
            {NUM_EXAMPLES: len(examples[0]), "uniform-weight": 1.0, "train-loss": loss}
        )
        return RecordDict({"arrays": arrays, "metrics": metrics})

    def compute_loss(message: Message, context: Context) -> RecordDict:
        model, (inputs, targets), seed, precision = prepare(message, context)
        size = len(inputs)
        config = next(iter(message.content.config_records.values()), ConfigRecord())
        most = int(str(config.get(MAX_EXAMPLES, 0))) or size
        if most < size:
            order = torch.Generator().manual_seed(seed)
            drawn = torch.randperm(size, generator=order)[:most].to(inputs.device)
            inputs, targets = inputs[drawn], targets[drawn]
        loss = mean_loss(model, (inputs, targets), loss_function, precision)
        return RecordDict({"metrics": MetricRecord({NUM_EXAMPLES: size, LOSS: loss})})

    def gradient(message: Message, context: Context) -> ArrayRecord:
        with releasing_memory(), _reproducible(int(context.run_config.get("threads", 1))):
            return compute_gradient(message, context)

    def num_examples(context: Context) -> int:
        return len(load_examples(context)[0])

    app = ClientApp(mods=[SummaryMod(gradient=gradient, num_examples=num_examples)])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        with releasing_memory(), _reproducible(int(context.run_config.get("threads", 1))):
            content = compute_update(message, context)
        return Message(content, reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        with releasing_memory(), _reproducible(int(context.run_config.get("threads", 1))):
            content = compute_loss(message, context)
        return Message(content, reply_to=message)

    return app


class _LastParsed:
    """The weights last read: a process that plays many clients is sent the same ones each time."""

    def __init__(self) -> None:
        self._arrays: list[weakref.ref[Array]] = []
        self._state: dict[str, Tensor] = {}

    def state(self, arrays: ArrayRecord) -> Mapping[str, Tensor]:
        """Return the record's tensors, which must not be written to."""
        known = len(arrays) == len(self._arrays) and list(arrays) == list(self._state)
        if not known or any(
            ref() is not array for ref, array in zip(self._arrays, arrays.values(), strict=True)
        ):
            self._arrays = [weakref.ref(array) for array in arrays.values()]
            self._state = arrays.to_torch_state_dict()
        return self._state


@contextmanager
def _reproducible(threads: int) -> Iterator[None]:
    """Fix what a sum's last bits depend on, and leave the process as it was."""
    before = torch.get_num_threads(), torch.backends.cudnn.deterministic, torch.get_rng_state()
    if threads > 0:
        torch.set_num_threads(threads)
    torch.backends.cudnn.deterministic = True
    try:
        yield
    finally:
        torch.set_num_threads(before[0])
        torch.backends.cudnn.deterministic = before[1]
        torch.set_rng_state(before[2])
