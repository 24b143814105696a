"""Thousands of random hostile replies: typed errors only, and the model stays sound."""

import logging
import os
import random
import re

import numpy as np
import pytest
from apps import kinds_app
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import (
    FedAdam,
    FedAvg,
    FedAvgM,
    FedMedian,
    FedTrimmedAvg,
    FedYogi,
    Krum,
    MultiKrum,
)

from pncs_flower.clients import summary_mod
from pncs_flower.protocol import LOST, MARKER, SUMMARY
from pncs_flower.simulations.run.in_process import InProcessGrid
from pncs_flower.strategies import SelectionError
from pncs_flower.strategies.rules import STRATEGIES

REPLIES = int(os.environ.get("PNCS_HOSTILE_REPLIES", "1500"))
CLIENTS = 6
HOSTILE = [{1, 4}, {0}, {0, 1, 2}, {0, 2, 3, 5}]  # the first in order counts for more than others

RULES = {
    "pncs": {"p": 2},
    "gradient-memory": {},
    "round-robin": {},
    "oort": {"loss_key": "loss"},
    "active-fl": {"loss_key": "loss"},
    "divfl": {},
    "gradient-norm": {},
    "power-of-choice": {"candidates": 4},
    "fedcor": {},
}
SKETCHED = ("pncs", "gradient-memory")
BASES = {
    "FedAvg": FedAvg,
    "FedAdam": FedAdam,
    "FedMedian": FedMedian,
    "Krum": Krum,
    "FedAvgM": lambda **options: FedAvgM(server_momentum=0.5, **options),
    "FedYogi": FedYogi,
    "FedTrimmedAvg": FedTrimmedAvg,
    "MultiKrum": lambda **options: MultiKrum(num_nodes_to_select=2, **options),
}

DTYPES = ["f4", "f8", "f2", ">f4", "i1", "i8", "u1", "bool", "c8", "<U3", "u8", ">i2"]
NUMBERS = [0, 1, -1, 1e308, -1e308, float("nan"), float("inf"), -float("inf"), 2**63 - 1, 0.5]
NUMBERS += [10**400, -(2**63), 1e-320, 1e9]
VALUES = [0.0, 1.0, -3.0, 65504.0, 4.5e18, -4.5e18, 1e19, 3e38, float("inf"), float("nan")]
TEXTS = ["ray\nActorDiedError: The actor died", "It may have expired due to its TTL", "\ud800", ""]


class Hostile(InProcessGrid):
    """A grid on which some clients send whatever comes to mind."""

    def __init__(self, seed: int, hostile: set[int]) -> None:
        super().__init__(kinds_app.make_app(summary_mod), CLIENTS)
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
            return Message(Error(self.dice.randrange(-1, 9), self.text()), reply_to=message)
        return Message(self.content(reply.content), reply_to=message)

    def text(self) -> str:
        if self.dice.random() < 0.2:
            return self.dice.choice(TEXTS)
        return "".join(chr(self.dice.randrange(1, 0x2FF)) for _ in range(self.dice.randrange(300)))

    def content(self, honest: RecordDict) -> RecordDict:
        content = RecordDict({name: record.copy() for name, record in honest.items()})
        kinds = [self.bend_arrays, self.bend_metrics, self.bend_records]
        if self.dice.random() < 0.3:
            kinds = [self.bend_metrics]
        for _ in range(self.dice.randrange(1, 4)):
            self.dice.choice(kinds)(content)
        return content

    def bend_records(self, content: RecordDict) -> None:
        if self.dice.random() < 0.2:  # the same records under one another's names
            names = list(content)
            records = [content.pop(name) for name in names]
            content.update(zip(names, reversed(records), strict=True))
            return
        if content and self.dice.random() < 0.5:
            del content[self.dice.choice(list(content))]
        name = self.dice.choice(["arrays", SUMMARY, MARKER, "metrics", "config", self.text()])
        content[name] = self.dice.choice(
            [
                ArrayRecord({"conv": self.array()}),
                MetricRecord({"num-examples": self.dice.choice(NUMBERS)}),
                ConfigRecord({"key": self.text(), "phase": "train"}),
                ConfigRecord({LOST: True}),
            ]
        )

    def bend_metrics(self, content: RecordDict) -> None:
        for record in content.metric_records.values():
            key = self.dice.choice(["num-examples", "loss", self.text()])
            value = self.dice.choice([*NUMBERS, [1.0, float("nan")], [], [1, 2]])
            record[key] = value

    def bend_arrays(self, content: RecordDict) -> None:
        for key, record in list(content.array_records.items()):
            if self.dice.random() < 0.1:  # another order
                record = ArrayRecord(dict(reversed(record.items())))
                content[key] = record
            name = self.dice.choice([*record, *record, "neck", ""])
            if self.dice.random() < 0.3 and name in record:
                record[name] = self.like(record[name])
            elif self.dice.random() < 0.3 and name in record:
                del record[name]
            elif self.dice.random() < 0.6 and name in record:
                record[name] = self.bent(record[name])
            else:
                record[name] = self.array()

    def array(self) -> Array:
        shape = tuple(self.dice.randrange(4) for _ in range(self.dice.randrange(4)))
        return self.filled(shape)

    def filled(self, shape: tuple[int, ...], dtype: object = None) -> Array:
        with np.errstate(all="ignore"):
            values = np.full(shape, self.dice.choice(VALUES))
            return Array(np.asarray(values.astype(dtype or self.dice.choice(DTYPES))))

    def like(self, array: Array) -> Array:
        """Return an array that differs from an honest one in shape, dtype or values alone."""
        shape, dtype = tuple(array.shape), array.dtype
        kind = self.dice.randrange(4)
        if kind == 0:
            return self.filled(self.dice.choice([(), (1,), (3,), (*shape, 1), shape[1:]]), dtype)
        if kind == 1:
            return self.filled(shape)
        if kind == 2 and np.dtype(dtype).kind in "iu":
            limits = np.iinfo(dtype)
            return Array(np.full(shape, self.dice.choice([limits.min, limits.max]), dtype))
        return self.filled(shape, dtype)

    def bent(self, array: Array) -> Array:
        data = bytearray(array.data)
        kind = self.dice.randrange(6)
        if kind == 0:  # a few bits, anywhere
            for _ in range(self.dice.randrange(1, 6) if data else 0):
                data[self.dice.randrange(len(data))] ^= 1 << self.dice.randrange(8)
        elif kind == 1:
            data = data[: self.dice.randrange(len(data))]
        elif kind == 2:
            data += bytes(self.dice.randrange(1, 2000))
        elif kind == 3:  # a header that promises the world
            forged = [b"(9999999999,"[: self.dice.randrange(2, 12)], b"(True,", b"(-1,"]
            data = data.replace(b"(", self.dice.choice(forged), 1)
        elif kind == 4:  # values that are not finite
            special = np.array([np.nan, np.inf, -np.inf, 3e38], np.float32)
            data[-4:] = special[self.dice.randrange(4)].tobytes()
        else:
            return Array(self.dice.choice(DTYPES), (1,), self.text(), bytes(data))
        return Array(array.dtype, array.shape, array.stype, bytes(data))


def strategy_of(number: int, dice: random.Random):
    """Return a strategy and its options: every rule with every base, as numbers go up."""
    rule = list(RULES)[number % len(RULES)]
    base = list(BASES.values())[number % len(BASES)]
    options = dict(RULES[rule])
    if rule in SKETCHED:
        options["sketch"] = dice.choice(["layers", "count:4@int8", "count:4@float16"])
        options["verify_sketches"] = dice.random() < 0.3
    if dice.random() < 0.3:
        options["clip_norm"] = dice.choice([0.1, 1e12])
    return STRATEGIES[rule](
        base(
            fraction_evaluate=dice.choice([0.0, 1.0]),
            min_train_nodes=1,
            min_available_nodes=1,
        ),
        num_selected=dice.randrange(1, 4),
        seed=number,
        ride_along=dice.random() < 0.5,
        **options,
    )


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of base strategies, at extreme values
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("replies", "rounds"),
    [(1000, 5), pytest.param(REPLIES, 20, marks=pytest.mark.minutes)],
    ids=["some", "many"],
)
def test_hostile_replies_never_reach_the_model_nor_break_the_run(replies, rounds, monkeypatch):
    # pytest keeps every record that is logged, and that takes longer than all else.
    monkeypatch.setattr(logging.getLogger("flwr"), "disabled", True)
    sent = number = ended = used = rejected = evaluations = 0
    while sent < replies:
        number += 1
        dice = random.Random(number)
        grid = Hostile(number, dice.choice(HOSTILE))
        strategy = strategy_of(number, dice)

        def is_sound(server_round, arrays):
            assert list(arrays) == list(kinds_app.ARRAYS)
            kinds_app.assert_same_kinds(arrays)

        try:
            strategy.start(
                grid, kinds_app.initial_arrays(), num_rounds=rounds, evaluate_fn=is_sound
            )
        except SelectionError:  # a typed end of the run, with its reason
            ended += 1
        hostile = {str(client) for client in grid.hostile}
        for record in strategy.history:
            assert set(record.rejected) <= hostile, (number, record.rejected)
            refused = {c for c, why in record.rejected.items() if why.startswith("pre-round")}
            # Where nobody's summary can be used, the longest waiting are chosen unseen.
            assert not refused & set(record.chosen) or not record.answered
            assert not record.answered or not set(record.rejected) & set(record.delivered)
            assert set(record.chosen) - set(record.delivered) <= hostile
            assert len(str(record.to_dict())) < 20_000
            for note in record.notes:
                left_out = re.findall(r"(?:^evaluation: left out are |; )([0-5]): ", note)
                assert set(left_out) <= hostile, (number, note)
                evaluations += len(left_out)
            rejected += len(record.rejected)
            used += len(hostile & set(record.delivered))
        sent += grid.sent
    assert sent >= replies
    assert used > replies / 100  # not all that is odd is refused
    assert rejected > replies / 10
    assert evaluations > replies / 100
    assert ended < number / 10
