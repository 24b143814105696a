"""The benchmarks' grid, whose clients train in batches, against the product's own training."""

import sys
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord
from flwr.serverapp.strategy import FedAvg

from pncs_flower.simulations.client_app import app
from pncs_flower.simulations.config import Config, default_run_config
from pncs_flower.simulations.run.in_process import InProcessGrid
from pncs_flower.simulations.task import initial_model, load_inputs
from pncs_flower.strategies import SketchedMean, UniformSelection

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

from batched import BatchedGrid, Faults, train_together

CLIENTS = 12


def config(**settings: object) -> Config:
    common = {"dataset": "digits", "model": "mlp", "partition": "dirichlet", "device": "cpu"}
    own = {key.replace("_", "-"): value for key, value in settings.items()}
    return Config.from_run_config(default_run_config() | common | {"seed": 3} | own)


def train(grid: InProcessGrid, strategy: SketchedMean, settings: Config) -> list[np.ndarray]:
    start = ArrayRecord(initial_model(settings, load_inputs(settings)).state_dict())
    result = strategy.start(grid, start, num_rounds=3)
    return [array.numpy() for array in result.arrays.values()]


@pytest.mark.parametrize(
    "settings",
    [
        {"local_epochs": 2, "batch_size": 7},
        {"batch_size": 0, "model": "linear"},
        {"batch_size": 1000, "partition": "shards"},
        {"model": "cnn", "batch_size": 50},
    ],
)
def test_same_as_in_process(settings: dict[str, object]) -> None:
    """The same choices, and weights up to rounding, with all sizes of clients and batches."""
    given = config(**settings)
    found = []
    for grid in (
        InProcessGrid(app, CLIENTS, given.to_run_config()),
        BatchedGrid(given, CLIENTS),
    ):
        base = FedAvg(fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=1)
        strategy = SketchedMean(base, num_selected=3, seed=3)
        found.append((train(grid, strategy, given), strategy.history))
    (ours, own_records), (theirs, other_records) = found
    for own, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(other, own, rtol=0, atol=1e-5)
    for own, other in zip(own_records, other_records, strict=True):
        assert (own.chosen, own.bytes_up) == (other.chosen, other.bytes_up)


@pytest.mark.parametrize("settings", [{"momentum": 0.9}, {"precision": "bfloat16"}])
def test_settings_that_it_lacks(settings: dict[str, object]) -> None:
    with pytest.raises(NotImplementedError, match="another model"):
        BatchedGrid(config(**settings), CLIENTS)
    BatchedGrid(config(model="cnn", **settings), CLIENTS)


def test_proximal_term() -> None:
    """What autograd makes of the loss with the term, for two clients of other sizes."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.ReLU(), torch.nn.Linear(4, 3))
    inputs, labels = torch.randn(20, 5), torch.randint(3, (20,))
    batches = [[torch.arange(4), torch.arange(4, 10), torch.arange(3)], [torch.arange(10, 17)]]
    before = [parameter.detach().clone() for parameter in model.parameters()]
    found = train_together(before, inputs, labels, batches, 0.1, 0.5)
    for own, (after, _) in zip(batches, found, strict=True):
        client = deepcopy(model)
        for batch in own:
            client.zero_grad()
            loss = torch.nn.functional.cross_entropy(client(inputs[batch]), labels[batch])
            pairs = list(zip(client.parameters(), before, strict=True))
            (loss + 0.25 * sum(((new - old) ** 2).sum() for new, old in pairs)).backward()
            with torch.no_grad():
                for parameter in client.parameters():
                    parameter -= 0.1 * parameter.grad
        for parameter, values in zip(client.parameters(), after, strict=True):
            np.testing.assert_allclose(values, parameter.detach(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("attack", ["false-sketch", "false-delivery", "flip"])
def test_attacks(attack: str) -> None:
    """Who sends a sketch of another update than it delivers is found; who flips both is not."""
    given = config(partition="shards")
    faults = Faults(hostile=0.25, attack=attack)
    grid = BatchedGrid(given, CLIENTS, faults)
    base = FedAvg(fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=1)
    strategy = SketchedMean(base, num_selected=8, seed=3)
    train(grid, strategy, given)
    chosen = {int(client) for record in strategy.history for client in record.chosen}
    liars = chosen & faults.attackers(3, CLIENTS)
    assert liars
    found = set(map(int, strategy.state()["excluded"]))
    assert found == (set() if attack == "flip" else liars)


def test_faults() -> None:
    """Those who are away are not asked, and the share of deliveries is lost, by the seed alone."""
    given = config(partition="shards")
    faults = Faults(lose=0.3, churn=0.3)
    grid = BatchedGrid(given, CLIENTS, faults)
    base = FedAvg(fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=1)
    strategy = UniformSelection(base, num_selected=CLIENTS, seed=3, wait_timeout=0.1)
    strategy.listeners.append(grid)
    grid.everybody = strategy.rule
    train(grid, strategy, given)
    for record in strategy.history:
        number = record.round
        present = {k for k in range(CLIENTS) if not faults.away(3, number, k)}
        assert present < set(range(CLIENTS))
        assert set(map(int, record.chosen)) == present
        arrived = {k for k in present if not faults.loses(3, number, k)}
        assert set(map(int, record.delivered)) == arrived < present
