"""Oort with devices of different speed, round for round against the paper's formulas by hand."""

import math
from collections import Counter

import pytest
from apps import numpy_app
from flwr.serverapp.strategy import FedAvg

from pncs_flower.clients import SummaryMod
from pncs_flower.devices import Device
from pncs_flower.simulations.run.in_process import InProcessGrid
from pncs_flower.strategies import Oort
from pncs_flower.strategies.grids.polling import PollingGrid

CLIENTS, SELECTED, ROUNDS, STEP = 12, 4, 64, 3.0


def size(client: int) -> int:
    return 10 + 3 * client


def loss(client: int, number: int) -> float:
    return (1 + (5 * client) % 12) * 0.97**number * (1 + 0.1 * math.sin(client + number))


def train(message, context):
    client = int(context.node_config["partition-id"])
    reply = numpy_app.train(message, context)
    number = int(message.content["config"]["server-round"])
    metrics = {"num-examples": size(client), "train-loss": loss(client, number)}
    reply.content["metrics"].update(metrics)
    return reply


def quantile(values: list[float], share: float) -> float:
    """Return a quantile, with linear interpolation."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def run(devices, rounds=ROUNDS, wrapped=lambda grid: grid):
    mod = SummaryMod(num_examples=lambda context: size(int(context.node_config["partition-id"])))
    grid = InProcessGrid(numpy_app.make_app(mod, train=train), CLIENTS)
    strategy = Oort(
        FedAvg(fraction_evaluate=0.0), num_selected=SELECTED, pacer_step=STEP, devices=devices
    )
    strategy.start(wrapped(grid), numpy_app.initial_arrays(), num_rounds=rounds)
    return strategy


@pytest.fixture(scope="module")
def devices():
    speeds = [2.0, 5.0, 11.0, 50.0, 200.0, 3.0, 17.0, 90.0, 8.0, 30.0, 4.0, 120.0]
    return {str(k): Device(speed, 1e6, 5e5, 0.05) for k, speed in enumerate(speeds)}


def test_choices_are_those_of_the_paper(devices):
    strategy = run(devices)
    utility: dict[str, float] = {}
    took: dict[str, float] = {}
    last: dict[str, int] = {}
    gains: list[float] = []
    preferred = STEP
    exact, moved = 0, 0
    for record in strategy.history:
        number, chosen = record.round, set(record.chosen)
        known = sorted(last)
        if known:
            bound = quantile([utility[c] for c in known], 0.95)
            score = {}
            for client in known:
                value = min(utility[client], bound) + math.sqrt(
                    0.1 * math.log(number) / last[client]
                )
                if took[client] > preferred:
                    value *= (preferred / took[client]) ** 2
                score[client] = value
            share = max(0.2, 0.9 * 0.98 ** (number - 1))
            count = min(math.floor((1 - share) * SELECTED + 0.5), len(known))
            count = max(count, SELECTED - (CLIENTS - len(known)))
            ranked = sorted(known, key=lambda client: -score[client])
            admitted = {c for c in known if count and score[c] >= 0.95 * score[ranked[count - 1]]}
            exploited = chosen & set(known)
            assert len(exploited) == count
            assert exploited <= admitted
            exact += count > 0 and len(admitted) == count
        for client in record.delivered:
            k = int(client)
            asked, *_, end = record.timeline[client]["training"]
            utility[client] = size(k) * loss(k, number)
            took[client], last[client] = end - asked, number
        gains.append(sum(utility[client] for client in record.delivered))
        if number % 20 == 0 and sum(gains[-40:-20]) > sum(gains[-20:]):
            preferred += STEP
            moved += 1
    assert exact > 10  # rounds in which no chance was left
    assert moved > 0
    state = strategy.state()["rule"]
    assert state["preferred"] == preferred
    assert state["seconds"] == pytest.approx(took, abs=2e-6)
    assert state["utilities"] == pytest.approx(utility, rel=1e-12)


@pytest.mark.minutes
def test_those_that_are_chosen_most_are_left_alone_where_they_are_slow():
    def times(strategy) -> Counter[str]:
        return Counter(client for record in strategy.history[20:] for client in record.chosen)

    often = times(run(None))
    most = [client for client, _ in often.most_common(3)]
    devices = {str(k): Device(0.5 if str(k) in most else 500.0, 1e6, 1e6) for k in range(CLIENTS)}
    seldom = times(run(devices))
    assert sum(seldom[client] for client in most) < 0.2 * sum(often[client] for client in most)


def test_without_devices_a_simulation_does_not_measure_time():
    strategy = run(None)
    assert strategy.state()["rule"]["seconds"] == {}
    assert [record.chosen for record in strategy.history] == [
        record.chosen for record in run(None).history
    ]


def test_in_a_deployment_it_is_measured_how_long_each_takes_and_in_a_simulation_it_is_not():
    deployed = run(None, rounds=3, wrapped=PollingGrid)
    chosen = {client for record in deployed.history for client in record.chosen}
    seconds = deployed.state()["rule"]["seconds"]
    assert set(seconds) == chosen
    assert all(0 < second < 60 for second in seconds.values())
    simulated = run(None, rounds=3, wrapped=lambda grid: PollingGrid(grid, simulated=True))
    assert simulated.state()["rule"]["seconds"] == {}
