"""Thousands of random hostile replies: typed errors only, and the model stays sound."""

import contextlib
import os
import random

import numpy as np
from apps import numpy_app
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg

from pncs_flower.clients import summary_mod
from pncs_flower.protocol import MARKER, SUMMARY
from pncs_flower.simulations.in_process import InProcessGrid
from pncs_flower.strategies import (
    PNCS,
    ActiveFL,
    GradientMemory,
    Oort,
    RoundRobin,
    SelectionError,
)

REPLIES = int(os.environ.get("PNCS_HOSTILE_REPLIES", "1000"))
CLIENTS = 6
HOSTILE = [{1, 4}, {0}, {0, 1, 2}]  # the first in order counts for more than others

OPTIONS = {
    PNCS: {"p": 2},
    GradientMemory: {},
    RoundRobin: {},
    Oort: {"loss_key": "num-examples"},
    ActiveFL: {"loss_key": "num-examples"},
}

DTYPES = ["float32", "float64", "float16", "int8", "int64", "uint8", "bool", "complex64", "<U3"]
NUMBERS = [0, 1, -1, 1e308, -1e308, float("nan"), float("inf"), -float("inf"), 2**63 - 1, 0.5]


class Hostile(InProcessGrid):
    """A grid on which some clients send whatever comes to mind."""

    def __init__(self, seed: int, hostile: set[int]) -> None:
        super().__init__(numpy_app.make_app(summary_mod), CLIENTS)
        self.hostile = hostile
        self.dice = random.Random(seed)
        self.sent = 0

    def _handle(self, message: Message) -> Message:
        reply = super()._handle(message)
        marker = message.content.config_records.get(MARKER, ConfigRecord())
        client = message.metadata.dst_node_id - 1000
        if client not in self.hostile or marker.get("phase") == "introduce" or reply.has_error():
            return reply
        self.sent += 1
        if self.dice.random() < 0.1:
            return Message(Error(self.dice.randrange(1, 9), self.text()), reply_to=message)
        return Message(self.content(reply.content), reply_to=message)

    def text(self) -> str:
        return "".join(chr(self.dice.randrange(1, 0x2FF)) for _ in range(self.dice.randrange(300)))

    def content(self, honest: RecordDict) -> RecordDict:
        content = RecordDict({name: record.copy() for name, record in honest.items()})
        for _ in range(self.dice.randrange(1, 4)):
            self.dice.choice([self.bend_arrays, self.bend_metrics, self.bend_records])(content)
        return content

    def bend_records(self, content: RecordDict) -> None:
        if content and self.dice.random() < 0.5:
            del content[self.dice.choice(list(content))]
        name = self.dice.choice(["arrays", SUMMARY, MARKER, "metrics", "config", self.text()])
        content[name] = self.dice.choice(
            [
                ArrayRecord({"head": self.array()}),
                MetricRecord({"num-examples": self.dice.choice(NUMBERS)}),
                ConfigRecord({"key": self.text(), "phase": "train"}),
            ]
        )

    def bend_metrics(self, content: RecordDict) -> None:
        for record in content.metric_records.values():
            key = self.dice.choice(["num-examples", "loss", self.text()])
            value = self.dice.choice([*NUMBERS, [1.0, float("nan")], [], [1, 2]])
            record[key] = value

    def bend_arrays(self, content: RecordDict) -> None:
        for record in content.array_records.values():
            name = self.dice.choice([*record, "neck", ""])
            if self.dice.random() < 0.3 and name in record:
                del record[name]
            elif self.dice.random() < 0.6 and name in record:
                record[name] = self.bent(record[name])
            else:
                record[name] = self.array()

    def array(self) -> Array:
        shape = tuple(self.dice.randrange(4) for _ in range(self.dice.randrange(4)))
        values = np.full(shape, self.dice.choice([0.0, 1.0, -3.0]))
        return Array(values.astype(self.dice.choice(DTYPES)))

    def bent(self, array: Array) -> Array:
        data = bytearray(array.data)
        kind = self.dice.randrange(6)
        if kind == 0:  # a few bits, anywhere
            for _ in range(self.dice.randrange(1, 6)):
                data[self.dice.randrange(len(data))] ^= 1 << self.dice.randrange(8)
        elif kind == 1:
            data = data[: self.dice.randrange(len(data))]
        elif kind == 2:
            data += bytes(self.dice.randrange(1, 2000))
        elif kind == 3:  # a header that promises the world
            data = data.replace(b"(", b"(9999999999,"[: self.dice.randrange(2, 12)], 1)
        elif kind == 4:  # values that are not finite
            special = np.array([np.nan, np.inf, -np.inf, 3e38], np.float32)
            data[-4:] = special[self.dice.randrange(4)].tobytes()
        else:
            return Array(self.dice.choice(DTYPES), (1,), self.text(), bytes(data))
        return Array(array.dtype, array.shape, array.stype, bytes(data))


def test_hostile_replies_never_reach_the_model_nor_break_the_run():
    sent = seed = 0
    while sent < REPLIES:
        seed += 1
        dice = random.Random(seed)
        kind = list(OPTIONS)[seed % len(OPTIONS)]
        grid = Hostile(seed, dice.choice(HOSTILE))
        options = dict(OPTIONS[kind])
        if kind in (PNCS, GradientMemory):
            options["sketch"] = dice.choice(["layers", "count:4@int8", "count:4@float16"])
        strategy = kind(
            FedAvg(fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=1),
            num_selected=dice.randrange(1, 4),
            seed=seed,
            **options,
        )

        def is_sound(server_round, arrays, strategy=strategy):
            for name, array in arrays.items():
                assert np.isfinite(array.numpy()).all(), name
                assert array.numpy().shape == numpy_app.LAYERS[name]
                assert array.numpy().dtype == np.float32

        with contextlib.suppress(SelectionError):  # a typed end of the run, with its reason
            strategy.start(grid, numpy_app.initial_arrays(), num_rounds=20, evaluate_fn=is_sound)
        for record in strategy.history:
            refused = {c for c, why in record.rejected.items() if why.startswith("pre-round")}
            # Where nobody's summary can be used, the longest waiting are chosen unseen.
            assert not refused & set(record.chosen) or not record.answered
            assert not (record.rejected.keys() - refused) & set(record.delivered)
        sent += grid.sent
    assert sent >= REPLIES
