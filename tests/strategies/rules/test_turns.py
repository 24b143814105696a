"""Who fails has had its turn: a dead client is not first in line for ever, under any rule."""

import numpy as np
import pytest
from apps import numpy_app
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from pncs_flower.clients import summary_mod
from pncs_flower.simulations.run.in_process import InProcessGrid
from pncs_flower.strategies import (
    PNCS,
    ActiveFL,
    GradientMemory,
    Oort,
    PowerOfChoice,
    RoundRobin,
    SelectionStrategy,
)

CLIENTS = 8


def play(strategy: SelectionStrategy, rounds: int, dead: set[int]) -> SelectionStrategy:
    """Run with clients that raise in every message of training, also in the pre-round."""
    app = ClientApp(mods=[summary_mod])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        if int(context.node_config["partition-id"]) in dead:
            raise RuntimeError("dead")
        reply = numpy_app.train(message, context)
        reply.content["metrics"]["train-loss"] = 1.0
        return reply

    app.evaluate()(numpy_app.evaluate)
    grid = InProcessGrid(app, CLIENTS)
    strategy.start(grid, numpy_app.initial_arrays(), num_rounds=rounds)
    return strategy


def base() -> FedAvg:
    return FedAvg(fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=1)


@pytest.mark.parametrize(
    "strategy",
    [
        RoundRobin(base(), num_selected=1),
        RoundRobin(base(), num_selected=2),
        ActiveFL(base(), num_selected=2, unseen="first"),
        PowerOfChoice(base(), num_selected=2, candidates=CLIENTS, variant="rpow-d"),
        Oort(base(), num_selected=2),
    ],
    ids=lambda strategy: f"{type(strategy).__name__}-{strategy.rule.num_selected}",
)
def test_two_dead_of_eight_take_a_fair_share_of_the_turns(strategy: SelectionStrategy) -> None:
    played = play(strategy, 24, dead={2, 5})
    turns = [client for record in played.history for client in record.chosen]
    assert 1 <= turns.count("2") <= len(turns) / 4
    assert 1 <= turns.count("5") <= len(turns) / 4


def test_a_dead_candidate_is_not_asked_again_before_the_others() -> None:
    played = play(PNCS(base(), num_selected=1, candidates=1, queue_length=0), 16, dead={4})
    assert [record.asked for record in played.history].count(["4"]) == 2


def test_memory_whose_known_clients_all_cool_down_takes_the_unknown() -> None:
    for seed in range(6):
        strategy = GradientMemory(
            base(), num_selected=2, candidates=1, queue_length=4, seed=seed, ride_along=False
        )
        played = play(strategy, 6, dead=set())
        assert all(len(record.delivered) == 2 for record in played.history)


def test_memory_adds_the_mean_also_in_a_round_in_which_nobody_answered() -> None:
    failed = set()

    def once(message: Message, context: Context) -> Message:
        number = message.content["config"]["server-round"]
        client = context.node_config["partition-id"]
        if number == 2 and client not in failed:
            failed.add(client)
            raise RuntimeError("the network is down")
        return numpy_app.train(message, context)

    app = ClientApp(mods=[summary_mod])
    app.train()(once)
    strategy = GradientMemory(
        base(), num_selected=2, sketch="layers", weights="uniform", ride_along=False
    )
    residuals = []
    observe = strategy._selector.observe

    def noted(plan, chosen, delivered):
        observe(plan, chosen, delivered)
        residuals.append(strategy.state()["rule"]["residual"])

    strategy._selector.observe = noted
    grid = InProcessGrid(app, 4)
    strategy.start(grid, numpy_app.initial_arrays(), num_rounds=2)
    assert strategy.history[1].answered == []
    table = strategy.state()["rule"]["table"]
    applied = [table[client] for client in strategy.history[1].delivered]
    wanted = residuals[0] + np.mean(list(table.values()), axis=0) - np.mean(applied, axis=0)
    np.testing.assert_allclose(residuals[1], wanted, atol=1e-6)
