"""Clients that come, go, fail and weigh differently, for references in plain NumPy."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

import numpy as np
from apps import kinds_app, numpy_app
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord
from flwr.serverapp.strategy import FedAvg

from pncs_flower.clients import SummaryMod
from pncs_flower.simulations.run.in_process import InProcessGrid
from pncs_flower.strategies import SelectionStrategy

# Floating point, no buffers of normalisation, not empty: by hand.
COVERED = ("conv.weight", "norm.weight", "temperature", "half.weight", "double.weight")
COVERED += ("swapped.weight",)


class Grid(InProcessGrid):
    """Has some clients away in some rounds."""

    round = 1

    def __init__(self, app, number: int, away: Callable[[int], Collection[int]]) -> None:
        super().__init__(app, number)
        self._away = away

    def get_node_ids(self):
        gone = {1000 + client for client in self._away(self.round)}
        return [node for node in super().get_node_ids() if node not in gone]


class Unweighted(FedAvg):
    """Has no weights: the plain mean."""

    def __init__(self, **options) -> None:
        super().__init__(**options)
        self.weighted_by_key = None

    def aggregate_train(self, server_round, replies):
        records = [next(iter(reply.content.array_records.values())) for reply in replies]
        if not records:
            return None, None
        models = [record.to_numpy_ndarrays() for record in records]
        means = [np.asarray(np.mean(each, axis=0)) for each in zip(*models, strict=True)]
        return ArrayRecord(dict(zip(records[0], ArrayRecord(means).values(), strict=True))), None


def examples(client: int, number: int) -> int:
    return 1 + (3 * client + 2 * number) % 7


@dataclass
class Federation:
    """Runs a strategy, and remembers the model before each round."""

    clients: int = 6
    away: Callable[[int], Collection[int]] = lambda number: ()
    fails: Callable[[int, int], bool] = lambda client, number: False
    says: bool = False
    constant: bool = False
    models: list[ArrayRecord] = field(default_factory=list)

    def run(self, strategy: SelectionStrategy, rounds: int) -> SelectionStrategy:
        says = (lambda c: 2 + int(c.node_config["partition-id"])) if self.says else None
        app = numpy_app.make_app(self.lose, SummaryMod(num_examples=says), train=self.train)
        grid = Grid(app, self.clients, self.away)

        def note(number: int, arrays: ArrayRecord) -> None:
            self.models.append(arrays)
            grid.round = number + 1

        strategy.start(grid, kinds_app.initial_arrays(), num_rounds=rounds, evaluate_fn=note)
        return strategy

    def lose(self, message: Message, context: Context, call_next) -> Message:
        """Fail to deliver, in front of the library's mod."""
        marker = message.content.config_records.get("pncs", {})
        client = int(context.node_config["partition-id"])
        if marker.get("phase") == "train" and self.fails(client, int(marker["round"])):
            raise OSError("no data")
        return call_next(message, context)

    def train(self, message: Message, context: Context) -> Message:
        client = int(context.node_config["partition-id"])
        number = int(message.content["config"]["server-round"])
        content = kinds_app.train(message, context).content
        for name in COVERED:
            after = self.trained(client, name, message.content["arrays"][name].numpy())
            content["arrays"][name] = Array(after)
        weights = {"num-examples": examples(client, number), "own-weight": 10.5 - client}
        content["metrics"] = MetricRecord(weights)
        return Message(content, reply_to=message)

    def change(self, number: int) -> np.ndarray:
        """What a round took from the covered arrays."""
        return flat(self.models[number - 1]) - flat(self.models[number])

    def trained(self, client: int, name: str, before: np.ndarray) -> np.ndarray:
        """Return what a client makes of an array: half of the way to a target of its own."""
        rng = np.random.default_rng([client, *name.encode()])
        first = kinds_app.ARRAYS[name]
        target = first + rng.normal(1, 2, first.shape).astype(first.dtype)
        step = (target - (first if self.constant else before)) / first.dtype.type(2)
        return np.asarray(before + step, first.dtype)

    def update(self, client: int, number: int) -> np.ndarray:
        """What a client's update in a round is."""
        pieces = []
        for name in COVERED:
            before = self.models[number - 1][name].numpy()
            after = self.trained(client, name, before)
            pieces.append((before.astype("f8") - after.astype("f8")).ravel())
        return np.concatenate(pieces)


def flat(model: ArrayRecord) -> np.ndarray:
    return np.concatenate([model[name].numpy().astype("f8").ravel() for name in COVERED])


def shares(
    clients: Collection[str], said: Mapping[str, float], delivered: Mapping[str, float]
) -> dict[str, float]:
    """w_k of those that take part, by hand."""
    known = {**said, **delivered}
    usual = np.mean([known[c] for c in clients if c in known])
    weights = np.array([known.get(client, usual) for client in clients], dtype="f8")
    return dict(zip(clients, weights / weights.sum(), strict=True))
