"""A base whose clients send something else than the model is told of in the first round."""

import numpy as np
import pytest
from apps import numpy_app
from flwr.app import Array, ArrayRecord
from flwr.serverapp.strategy import FedAvg

from pncs_flower.clients import summary_mod
from pncs_flower.simulations.run.in_process import InProcessGrid
from pncs_flower.strategies import EmptyRoundsError, RoundRobin, SelectionError, UniformSelection


class Scaffold(FedAvg):
    """Aggregates control variates beside models."""

    def aggregate_train(self, server_round, replies):
        assert not list(replies)
        return None, None


def control_variates(content):
    content["control"] = ArrayRecord(dict(content["arrays"]))


def int8(content):
    content["arrays"] = ArrayRecord(
        {n: Array(np.zeros(a.shape, np.int8)) for n, a in content["arrays"].items()}
    )


def flat(content):
    values = [array.numpy().ravel() for array in content["arrays"].values()]
    content["arrays"] = ArrayRecord({"all": Array(np.concatenate(values))})


def low_rank(content):
    content["arrays"] = ArrayRecord(
        {n: Array(np.zeros((*a.shape, 1), np.float32)) for n, a in content["arrays"].items()}
    )


FORMS = {
    "control variates": (control_variates, "2 array records"),
    "int8": (int8, "array .* has dtype int8, not float32"),
    "flat": (flat, "arrays all in place of body.weight"),
    "low rank": (low_rank, r"array .* has shape \(3, 4, 1\)"),
}


def start(strategy, change, clients=range(4), rounds: int = 5):
    def mod(message, context, call_next):
        reply = call_next(message, context)
        if context.node_config["partition-id"] in clients and "arrays" in reply.content:
            change(reply.content)
        return reply

    grid = InProcessGrid(numpy_app.make_app(summary_mod, mod), 4)
    strategy.start(grid, numpy_app.initial_arrays(), num_rounds=rounds)


@pytest.mark.parametrize("kind", [UniformSelection, RoundRobin])
@pytest.mark.parametrize(("change", "what"), FORMS.values(), ids=FORMS)
def test_updates_that_are_no_models_are_told_of_in_the_first_round(kind, change, what):
    strategy = kind(Scaffold(fraction_evaluate=0.0), num_selected=2)
    with pytest.raises(SelectionError, match=f"have not the form of the model: {what}.*Scaffold"):
        start(strategy, change)
    assert len(strategy.history) == 1


def test_with_one_client_a_round_it_takes_two_rounds():
    base = Scaffold(fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=1)
    strategy = RoundRobin(base, num_selected=1)
    with pytest.raises(SelectionError, match=r"clients \d, \d have not the form"):
        start(strategy, int8)
    assert len(strategy.history) == 2


def test_a_single_client_cannot_end_the_run_so():
    class Own(FedAvg):
        pass

    strategy = RoundRobin(Own(fraction_evaluate=0.0), num_selected=2)
    start(strategy, int8, clients={0})
    assert len(strategy.history) == 5


def test_with_a_strategy_of_flowers_own_the_clients_are_at_fault():
    strategy = RoundRobin(FedAvg(fraction_evaluate=0.0), num_selected=2)
    with pytest.raises(EmptyRoundsError, match="dtype int8"):
        start(strategy, int8)
    strategy = RoundRobin(FedAvg(fraction_evaluate=0.0), num_selected=2)
    start(strategy, int8, clients={0, 1})
    assert any(record.delivered for record in strategy.history)
