"""A grid whose clients train all at once, so that a run of 1,000 clients takes a minute or two.

The messages, the app with its mod, and the strategy are the product's. Only the steps of local SGD
are computed for all clients that a round trains, by products of batches of matrices, where the
model is a row of linear layers; the batches are those of each client's own training, so the weights
are the same up to rounding. Other models train as they always do.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple
from unittest.mock import patch

import numpy as np
import torch
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.common.constant import ErrorCode
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from pncs_flower import protocol
from pncs_flower.clients.pytorch import pytorch_client
from pncs_flower.clients.summary import summary_mod
from pncs_flower.clients.training import LocalTraining
from pncs_flower.protocol import MARKER
from pncs_flower.randomness import derive_seed, generator
from pncs_flower.simulations.config import Agreeing, Config
from pncs_flower.simulations.run.in_process import InProcessGrid
from pncs_flower.simulations.task import empty_model, load_inputs
from pncs_flower.strategies import SelectionRule
from pncs_flower.strategies.record import RoundListener, RoundRecord

# Inputs of one step that are computed at once: fits the processor's cache.
_VALUES = 1 << 19
_numpy = Array.numpy
_PERIOD = 5  # rounds for which a client stays or is away

# What a hostile client's update is multiplied by before it is sketched, and once more when it is
# delivered.
ATTACKS = {
    "flip": (-1.0, 1.0),
    "large": (10.0, 1.0),
    "large-flip": (-10.0, 1.0),
    "false-sketch": (-1.0, -1.0),
    "large-sketch": (10.0, 0.1),
    "false-delivery": (1.0, -10.0),
}


class Clients(NamedTuple):
    """The training examples of all clients, one client after the other."""

    inputs: Tensor
    labels: Tensor
    ends: list[int]  # client k has the examples from ends[k] to ends[k + 1]

    def of(self, client: int) -> tuple[Tensor, Tensor]:
        own = slice(*self.ends[client : client + 2])
        return self.inputs[own], self.labels[own]


@lru_cache(maxsize=1)
def _clients(agreeing: Agreeing, count: int) -> Clients:
    inputs = load_inputs(agreeing.config)
    parts = inputs.divide(agreeing.config, count)
    ends = np.cumsum([0, *map(len, parts)]).tolist()
    return Clients(*inputs.train_tensors(np.concatenate(parts)), ends)


@dataclass(frozen=True)
class Faults:
    """What goes wrong, the same for all lines with a seed: shares of deliveries and of clients."""

    lose: float = 0.0  # deliveries that do not arrive
    churn: float = 0.0  # clients that are away, for a few rounds each time
    hostile: float = 0.0  # clients that attack in all rounds
    attack: str = "flip"

    def attackers(self, seed: int, clients: int) -> set[int]:
        drawn = generator(seed, "hostile").permutation(clients)
        return set(drawn[: round(self.hostile * clients)].tolist())

    def away(self, seed: int, number: int, client: int) -> bool:
        turn = generator(seed, "turn", client).integers(_PERIOD)
        period = (number + int(turn)) // _PERIOD
        return bool(generator(seed, "away", period, client).random() < self.churn)

    def loses(self, seed: int, number: int, client: int) -> bool:
        return bool(generator(seed, "lost", number, client).random() < self.lose)


class BatchedGrid(InProcessGrid, RoundListener):
    """Run simulated clients in the calling process; those that are asked together train together.

    It must be among the listeners of its strategy, which tell it the round. A rule given as
    ``everybody`` is to choose all clients that are there in each round.
    """

    everybody: SelectionRule | None = None

    def __init__(self, config: Config, num_clients: int, faults: Faults = Faults()) -> None:
        self._config, self._faults, self._round = config, faults, 1
        self._examples = _clients(config.of_parts(), num_clients)
        self._attackers = faults.attackers(config.seed, num_clients)
        self._factors = ATTACKS[faults.attack]
        self._asked: list[int] = []  # the clients that may have to train
        self._trained: dict[int, tuple[list[np.ndarray], float]] = {}
        model = empty_model(config, load_inputs(config))
        check_settings(config, model)
        self._is_row = _is_row_of_linear_layers(model)
        self._own_app = pytorch_client(lambda context: model, self._own_examples)
        super().__init__(self._app_of_all, num_clients, config.to_run_config())  # type: ignore

    def _own_examples(self, context: Context) -> tuple[Tensor, Tensor]:
        return self._examples.of(int(context.node_config["partition-id"]))

    def opened(self, record: RoundRecord, arrays: ArrayRecord) -> None:
        self._round = record.round
        if self.everybody is not None:
            present = len(list(self.get_node_ids()))
            object.__setattr__(self.everybody, "num_selected", present)

    def get_node_ids(self) -> Iterable[int]:
        if not self._faults.churn:
            return super().get_node_ids()
        seed, number = self._config.seed, self._round
        return [
            node
            for node in super().get_node_ids()
            if not self._faults.away(seed, number, self._client(node))
        ]

    def _client(self, node: int) -> int:
        return int(self.contexts[node].node_config["partition-id"])

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        messages = list(messages)
        asked = [m for m in messages if m.metadata.message_type == "train" and _weights(m)]
        if asked:
            self._weights, self._trained = _weights(asked[0]), {}
            if any(_weights(message) != self._weights for message in asked):
                raise NotImplementedError("clients that train together start from other weights")
            self._asked = [self._client(message.metadata.dst_node_id) for message in asked]
        with patch.object(Array, "numpy", _read):
            return super().push_messages(messages)

    def _app_of_all(self, message: Message, context: Context) -> Message:
        """Answer as the client's app does; only its training is replaced."""
        marker = message.content.config_records.get(MARKER, {})
        if marker.get("kind") == "update" or marker.get("phase") == protocol.TRAIN:
            return summary_mod(message, context, self._train)
        return self._own_app(message, context)

    def _train(self, message: Message, context: Context) -> Message:
        client = int(context.node_config["partition-id"])
        config = next(iter(message.content.config_records.values()))
        if not self._is_row:
            if "proximal-mu" in config:
                raise NotImplementedError("the proximal term is for rows of linear layers alone")
            reply = self._own_app(message, context)
        else:
            if client not in self._trained:
                self._train_all(config, LocalTraining.from_context(context))
            values, loss = self._trained.pop(client)
            size = len(self._examples.of(client)[1])
            metrics = {protocol.NUM_EXAMPLES: size, "uniform-weight": 1.0, "train-loss": loss}
            arrays = dict(zip(self._weights, map(Array, values), strict=True))
            content = {"arrays": ArrayRecord(arrays), "metrics": MetricRecord(metrics)}
            reply = Message(RecordDict(content), reply_to=message)
        if client in self._attackers:
            self._multiply(reply, self._factors[0])
        return reply

    def _multiply(self, reply: Message, factor: float) -> None:
        """Multiply the update in a reply."""
        for name, record in reply.content.array_records.items():
            changed = {}
            for key, array in record.items():
                old, new = self._weights[key].numpy(), array.numpy()
                changed[key] = Array((old + factor * (new - old)).astype(new.dtype))
            reply.content[name] = ArrayRecord(changed)

    def _train_all(self, config: ConfigRecord, how: LocalTraining) -> None:
        """Train all that were asked together, those of a size at once."""
        before = [torch.from_numpy(array.numpy()) for array in self._weights.values()]
        mu = float(config.get("proximal-mu", 0.0))
        names = self._config.seed, "local training", int(config["server-round"])
        ends, inputs = self._examples.ends, self._examples.inputs.flatten(1)
        sizes = {client: ends[client + 1] - ends[client] for client in self._asked}
        waiting = sorted(sizes, key=lambda client: -sizes[client])
        while waiting:
            step = min(how.batch_size or sizes[waiting[0]], sizes[waiting[0]])
            count = max(1, _VALUES // (step * inputs.shape[1]))
            group, waiting = waiting[:count], waiting[count:]
            batches = [
                [
                    ends[client] + batch
                    for batch in _batches(sizes[client], how, derive_seed(*names, str(client)))
                ]
                for client in group
            ]
            found = train_together(before, inputs, self._examples.labels, batches, how.lr, mu)
            self._trained |= dict(zip(group, found, strict=True))

    def _handle(self, message: Message) -> Message:
        marker = message.content.config_records.get(MARKER, {})
        client = self._client(message.metadata.dst_node_id)
        reply = super()._handle(message)
        if marker.get("phase") != protocol.TRAIN or reply.has_error():
            return reply
        if self._faults.loses(self._config.seed, self._round, client):
            return Message(Error(ErrorCode.REPLY_MESSAGE_UNAVAILABLE), reply_to=message)
        if client in self._attackers:
            self._multiply(reply, self._factors[1])
        return reply


def _read(array: Array) -> np.ndarray:
    """Return what `Array.numpy` does, without the time that parsing a header takes."""
    if b"'fortran_order': False" not in array.data[:128]:
        return _numpy(array)
    size = math.prod(array.shape) * np.dtype(array.dtype).itemsize
    values = np.frombuffer(array.data, array.dtype, offset=len(array.data) - size)
    return values.reshape(array.shape).copy()


def _weights(message: Message) -> ArrayRecord:
    """Return the model in a message; empty if there is none."""
    return next(iter(message.content.array_records.values()), ArrayRecord())


def check_settings(config: Config, model: nn.Module) -> None:
    """Raise NotImplementedError for what clients that train together do not have."""
    for name, value, only in (
        ("momentum", config.momentum, (0.0,)),
        ("precision", config.precision, ("float32",)),
        ("device", config.device, ("auto", "cpu")),
    ):
        if value not in only and _is_row_of_linear_layers(model):
            raise NotImplementedError(
                f"{name} is {value}, but linear layers are trained together, on the CPU with "
                f"{name} {only[-1]} alone: take that, or another model (cnn)"
            )


def _is_row_of_linear_layers(model: nn.Module) -> bool:
    """Return whether a model is made of linear layers with bias, and ReLU between them."""
    leaves = [module for module in model.modules() if not list(module.children())]
    steps = [module for module in leaves if not isinstance(module, nn.Flatten)]
    return all(
        isinstance(module, nn.ReLU) if place % 2 else _has_bias(module)
        for place, module in enumerate(steps)
    ) and bool(len(steps) % 2)


def _has_bias(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear) and module.bias is not None


def _batches(size: int, how: LocalTraining, seed: int) -> Iterator[Tensor]:
    """Yield the batches of a client's training, in the order of `training.local_sgd`."""
    order = torch.Generator().manual_seed(seed)
    for _ in range(how.local_epochs):
        if not 0 < how.batch_size < size:
            yield torch.arange(size)
        else:
            yield from torch.randperm(size, generator=order).split(how.batch_size)


def _at(inputs: Tensor, places: Tensor) -> Tensor:
    """Return inputs at places of shape (K, B) as (K, B, inputs), without a copy if it is a row."""
    first, size = int(places[0, 0]), places.numel()
    if len(places) == 1 and torch.equal(places[0], torch.arange(first, first + size)):
        return inputs[first : first + size][None]
    return inputs[places.flatten()].view(*places.shape, -1)


@torch.no_grad()
def train_together(
    before: list[Tensor],
    inputs: Tensor,
    labels: Tensor,
    batches: list[list[Tensor]],
    lr: float,
    mu: float = 0.0,
) -> list[tuple[list[np.ndarray], float]]:
    """Train a row of linear layers by SGD, for each client on its own batches.

    Parameters
    ----------
    before : list of Tensor
        Weight (outputs, inputs) and bias (outputs,) of each layer.
    inputs, labels : Tensor
        The examples, (N, inputs) and (N,).
    batches : list of list of Tensor
        The places of each step's examples, for each client; no client has more steps than the one
        before it.
    lr, mu : float
        The rate, and the weight of FedProx's proximal term.

    Returns
    -------
    list of (list of array, float)
        The weights and biases of each client after its training, and its mean loss.
    """
    clients = len(batches)
    all_after = [values.expand(clients, *values.shape).clone() for values in before]
    total = torch.zeros(clients)
    for step in range(len(batches[0])):
        now = [own[step] for own in batches if step < len(own)]
        sizes = torch.tensor([len(batch) for batch in now])
        places = pad_sequence(now, batch_first=True)
        share = (torch.arange(places.shape[1]) < sizes[:, None]) / sizes[:, None]
        after = [values[: len(now)] for values in all_after]
        layers = list(zip(after[::2], after[1::2], strict=True))
        given = [_at(inputs, places)]
        for weight, bias in layers:
            outputs = torch.baddbmm(bias[:, None], given[-1], weight.mT)
            given.append(outputs.relu_() if weight is not after[-2] else outputs)
        logs = torch.log_softmax(given.pop(), 2)
        answers = labels[places][:, :, None]
        total[: len(now)] -= (logs.gather(2, answers)[:, :, 0] * share).sum(1) * sizes
        change = logs.exp_()
        change.scatter_add_(2, answers, torch.full_like(answers, -1, dtype=change.dtype))
        change *= share[:, :, None]
        for place, (weight, bias) in reversed(list(enumerate(layers))):
            below = torch.bmm(change, weight) * (given[place] > 0) if place else change
            if mu:
                weight.lerp_(before[2 * place].expand_as(weight), lr * mu)
                bias.lerp_(before[2 * place + 1].expand_as(bias), lr * mu)
            weight.baddbmm_(change.mT, given[place], alpha=-lr)
            bias.sub_(change.sum(1), alpha=lr)
            change = below
    return [
        (
            [values[client].numpy() for values in all_after],
            float(total[client]) / sum(map(len, own)),
        )
        for client, own in enumerate(batches)
    ]
