"""The same model to its last bit: whatever the order of replies, riding along, stopped or not."""

import json
import random

import numpy as np
import pytest
from apps import numpy_app
from flwr.serverapp.strategy import FedAdam, FedAvg

from pncs_flower.clients import SummaryMod
from pncs_flower.simulations.run.in_process import InProcessGrid
from pncs_flower.strategies import (
    PNCS,
    GradientMemory,
    ProportionalSelection,
    RoundRobin,
    SketchedMean,
    UniformSelection,
)

ROUNDS = 7
RUNS = {
    "sketched mean": (SketchedMean, {}),
    "layers": (SketchedMean, {"sketch": "layers", "combine": "sketched-mean:store=3"}),
    "some asked": (SketchedMean, {"candidates": 4}),
    "PNCS": (PNCS, {"combine": "sketched-mean:dtype=float16", "queue_length": 2}),
    "memory": (GradientMemory, {"combine": "sketched-mean:store=200B"}),
    "fedvarp": (RoundRobin, {"combine": "fedvarp"}),
    "fedstale": (UniformSelection, {"combine": "surrogates:0.5,store=3"}),
    "mifa": (RoundRobin, {"combine": "mifa:dtype=float16"}),
    "drawn": (ProportionalSelection, {"queue_length": 3}),
    "drawn, fedvarp": (ProportionalSelection, {"combine": "fedvarp"}),
}


class Shuffled(InProcessGrid):
    """Hands replies over in another order each time."""

    def __init__(self, *arguments, seed: int) -> None:
        super().__init__(*arguments)
        self._random = random.Random(seed)

    def pull_messages(self, message_ids):
        replies = list(super().pull_messages(message_ids))
        self._random.shuffle(replies)
        return replies

    def get_node_ids(self):
        nodes = list(super().get_node_ids())
        self._random.shuffle(nodes)
        return nodes


def train(message, context):
    client = int(context.node_config["partition-id"])
    number = int(message.content["config"]["server-round"])
    if np.random.default_rng([client, number]).random() < 0.15:
        raise OSError("no data")
    reply = numpy_app.train(message, context)
    reply.content["metrics"]["num-examples"] = 1 / (1 + client + number)  # sums that round
    return reply


def run(kind, options, seed=0, rounds=ROUNDS, base=FedAvg, **more):
    app = numpy_app.make_app(
        SummaryMod(num_examples=lambda c: 3 + 2 * int(c.node_config["partition-id"])), train=train
    )
    strategy = kind(base(), num_selected=3, seed=8, **options, **more)
    grid = Shuffled(app, 7, seed=seed)
    return strategy, strategy.start(grid, numpy_app.initial_arrays(), num_rounds=rounds).arrays


def told(strategy) -> list[str]:
    """What was decided and combined; not when it was asked, nor what it cost."""
    left_out = ("seconds", "pre_round", "bytes_up", "bytes_down", "rule")
    rows = [{k: v for k, v in vars(r).items() if k not in left_out} for r in strategy.history]
    return [json.dumps(row, sort_keys=True, allow_nan=False) for row in rows]


@pytest.mark.parametrize("name", RUNS)
def test_the_order_of_replies_and_riding_along_change_no_bit(name):
    one, arrays = run(*RUNS[name])
    other, shuffled = run(*RUNS[name], seed=1)
    apart, without = run(*RUNS[name], seed=2, ride_along=False)
    assert arrays == shuffled == without
    assert told(one) == told(other) == told(apart)
    assert all(len(record.delivered) >= 1 for record in one.history)
    assert any(record.rejected for record in one.history)


@pytest.mark.minutes
@pytest.mark.parametrize("base", [FedAvg, FedAdam])
@pytest.mark.parametrize("name", RUNS)
def test_a_run_that_is_taken_up_after_each_round_is_the_same(name, base, tmp_path):
    whole, arrays = run(*RUNS[name], base=base)
    for rounds in range(1, ROUNDS + 1):
        resumed, again = run(*RUNS[name], base=base, rounds=rounds, checkpoint=tmp_path)
    assert again == arrays
    assert told(resumed) == told(whole)


@pytest.mark.parametrize("combine", ["fedvarp", "mifa", "sketched-mean:7"])
def test_another_combination_is_no_run_to_take_up(combine, tmp_path):
    run(GradientMemory, {"combine": "sketched-mean"}, rounds=2, checkpoint=tmp_path)
    with pytest.raises(ValueError, match=f"combine: saved 'sketched-mean', given '{combine}'"):
        run(GradientMemory, {"combine": combine}, rounds=3, checkpoint=tmp_path)
