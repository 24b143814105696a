"""Tree ensembles: arrays of bytes that grow, and what each rule and base makes of them."""

import json

import numpy as np
import pytest
from apps import numpy_app
from culprits import culprit_sends
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg, FedXgbBagging

from pncs_flower.clients import summary_mod
from pncs_flower.simulations.run.in_process import InProcessGrid
from pncs_flower.strategies import (
    PNCS,
    DivFL,
    GradientMemory,
    GradientNorm,
    PowerOfChoice,
    RoundRobin,
    UniformSelection,
)


def ensemble(*trees) -> bytes:
    """Return what XGBoost writes of some trees, as far as Flower reads it."""
    model = {
        "gbtree_model_param": {"num_trees": str(len(trees)), "num_parallel_tree": "1"},
        "iteration_indptr": list(range(len(trees) + 1)),
        "trees": [{"id": number, "of": tree} for number, tree in enumerate(trees)],
        "tree_info": [0] * len(trees),
    }
    return json.dumps({"learner": {"gradient_booster": {"model": model}}}).encode()


def boosters(data: bytes) -> ArrayRecord:
    return ArrayRecord({"0": Array(np.frombuffer(data, np.uint8))})


def trees_of(arrays: ArrayRecord) -> list[str]:
    model = json.loads(arrays["0"].numpy().tobytes())["learner"]["gradient_booster"]["model"]
    return [tree["of"] for tree in model["trees"]]


def train(message, context):
    content = {
        "arrays": boosters(ensemble(f"client {context.node_config['partition-id']}")),
        "metrics": MetricRecord({"num-examples": 1}),
    }
    return Message(RecordDict(content), reply_to=message)


def evaluate(message, context):
    if not message.content["arrays"]["0"].numpy().size:
        raise SystemError("XGBoost has nothing to evaluate, and the process is gone")
    metrics = MetricRecord({"num-examples": 1, "loss": 1.0})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


def start(strategy, *mods, rounds: int = 3, first: bytes = b""):
    app = ClientApp(mods=[*mods, summary_mod])
    app.train()(train)
    app.evaluate()(evaluate)
    return strategy.start(InProcessGrid(app, 4), boosters(first), num_rounds=rounds)


@pytest.mark.parametrize("kind", [UniformSelection, RoundRobin])
def test_trees_grow_with_a_rule_that_asks_for_no_sketch(kind):
    strategy = kind(FedXgbBagging(), num_selected=2, seed=1)
    result = start(strategy)
    delivered = [client for record in strategy.history for client in record.delivered]
    assert trees_of(result.arrays) == [f"client {client}" for client in delivered]
    assert len(delivered) == 6


@pytest.mark.parametrize("kind", [PNCS, GradientMemory, DivFL, GradientNorm])
@pytest.mark.parametrize("first", [b"", ensemble("first")])
def test_a_rule_that_needs_a_gradient_says_what_the_model_lacks(kind, first):
    with pytest.raises(ValueError, match=r"no floating-point array .*0 of uint8.*UniformSelection"):
        start(kind(FedXgbBagging()), first=first)


def test_a_loss_of_an_empty_model_is_asked_of_nobody():
    """To evaluate no trees at all ends a client's process, as XGBoost is."""
    with pytest.raises(ValueError, match=r"empty, so it has no loss.*rpow-d.*UniformSelection"):
        start(PowerOfChoice(FedXgbBagging()))
    result = start(PowerOfChoice(FedXgbBagging()), first=ensemble("first"))
    assert len(trees_of(result.arrays)) == 1 + 3 * 2


WRONG = {
    "no bytes": b"",
    "noise": b"\x00\xff" * 40,
    "text": b'"trees"',
    "list": b"[1, 2]",
    "null": b"null",
    "deep": b"[" * 100_000,
    "no trees": ensemble(),
    "fewer trees than it says": ensemble("a").replace(b'"num_trees": "1"', b'"num_trees": "9"'),
    "more trees than any number": ensemble("a").replace(b'"num_trees": "1"', b'"num_trees": 1e999'),
    "trees that are none": ensemble("a").replace(b'"trees": [{', b'"trees": [7, {'),
    "more at once than it has": ensemble("a").replace(b'tree": "1"', b'tree": "8"'),
    "starts that are none": ensemble("a").replace(b"[0, 1]", b"[]"),
    "half": ensemble("a", "b")[:-20],
}


@pytest.mark.parametrize("data", WRONG.values(), ids=WRONG)
def test_trees_that_could_not_be_joined_are_left_out(data):
    def wrong(message, reply):
        content = RecordDict({**reply.content, "arrays": boosters(data)})
        return Message(content, reply_to=message)

    strategy = RoundRobin(FedXgbBagging(), num_selected=4)
    result = start(strategy, culprit_sends("train", wrong))
    assert all(record.delivered == ["0", "2", "3"] for record in strategy.history)
    assert all("no tree ensemble" in record.rejected["1"] for record in strategy.history)
    assert trees_of(result.arrays) == ["client 0", "client 2", "client 3"] * 3


def test_bytes_that_are_averaged_do_not_grow():
    def longer(message, reply):
        arrays = reply.content["arrays"]
        return Message(
            RecordDict({**reply.content, "arrays": boosters(arrays["0"].numpy().tobytes() * 2)}),
            reply_to=message,
        )

    strategy = RoundRobin(FedAvg(fraction_evaluate=0.0), num_selected=4)
    start(strategy, culprit_sends("train", longer), first=ensemble("client 0"))
    for record in strategy.history:
        assert record.delivered == ["0", "2", "3"]
        assert "shape" in record.rejected["1"]


def test_clients_of_a_model_of_floats_are_asked_as_before():
    strategy = PowerOfChoice(FedAvg(fraction_evaluate=0.0))
    grid = InProcessGrid(numpy_app.make_app(summary_mod), 4)
    strategy.start(grid, numpy_app.initial_arrays(), num_rounds=1)
    assert strategy.history[0].answered
