"""The app on real clients in this process: what it trains, writes and refuses."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Context, Message

from pncs_flower.simulations.client_app import Holdings
from pncs_flower.simulations.client_app import app as client_app
from pncs_flower.simulations.config import CHOICES, Config, default_run_config
from pncs_flower.simulations.models.small import build_model
from pncs_flower.simulations.run import training
from pncs_flower.simulations.run.folder import read_rounds
from pncs_flower.simulations.run.in_process import InProcessGrid
from pncs_flower.simulations.run.strategy import build_strategy
from pncs_flower.simulations.run.training import Evaluation, train
from pncs_flower.strategies import EmptyRoundsError, SelectionError, timeouts


def run(output: Path, num_clients: int = 4, **settings: Any) -> list[dict[str, Any]]:
    config = Config.from_run_config(
        default_run_config()
        | {"num-rounds": 2, "device": "cpu", "queue-length": 2}
        | {key.replace("_", "-"): value for key, value in settings.items()}
    )
    shown: list[Any] = []
    train(
        InProcessGrid(client_app, num_clients, config.to_run_config()), config, output, shown.append
    )
    assert shown == read_rounds(output)
    return shown


def test_loss_that_is_not_finite_is_null_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = Evaluation(0.1, float("nan"), (0.1,) * 10)
    monkeypatch.setattr(training, "evaluate", lambda *_: bad)
    assert [row["loss"] for row in run(tmp_path)] == [None, None]
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["initial-loss"], summary["final-loss"]) == (None, None)


def weights(folder: Path) -> dict[str, np.ndarray]:
    with np.load(folder / "weights.npz", allow_pickle=False) as file:
        return dict(file)


@pytest.mark.parametrize("strategy", CHOICES["strategy"])
def test_each_strategy_trains(tmp_path: Path, strategy: str) -> None:
    rows = run(tmp_path, strategy=strategy)
    assert [len(row["delivered"]) for row in rows] == [2, 2]


@pytest.mark.parametrize("dataset_settings", [{"partition": "dirichlet"}, {"partition": "iid"}])
def test_each_partition_trains(tmp_path: Path, dataset_settings: dict[str, Any]) -> None:
    assert len(run(tmp_path, strategy="uniform", **dataset_settings)) == 2


def test_training_helps(tmp_path: Path) -> None:
    rows = run(tmp_path, num_rounds=5, local_epochs=3, partition="iid", strategy="uniform")
    assert rows[-1]["accuracy"] > 0.6  # guessing gives 0.1


def test_a_gradient_can_be_compared_of_one_layer(tmp_path: Path) -> None:
    rows = run(tmp_path, rule='summary = "gradient", layers = "fc2"')
    assert rows[0]["bytes_up"]["pre-round"] < 4 * 4 * (64 * 10 + 10) + 4 * 1000
    assert -1 <= rows[0]["mean_similarity"] <= 1


def test_the_folder_holds_the_whole_run(tmp_path: Path) -> None:
    rows = run(tmp_path)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["final-accuracy"] == rows[-1]["accuracy"]
    assert sum(summary["times-chosen"].values()) == 4
    shapes = {
        name: array.shape for name, array in build_model("mlp", (1, 8, 8), 10).state_dict().items()
    }
    assert {name: array.shape for name, array in weights(tmp_path).items()} == shapes


def test_the_seed_decides_everything(tmp_path: Path) -> None:
    first = run(tmp_path / "a", seed=1)
    again = run(tmp_path / "b", seed=1)
    run(tmp_path / "c", seed=2)
    assert [row["chosen"] for row in first] == [row["chosen"] for row in again]
    for name, array in weights(tmp_path / "a").items():
        assert array.tobytes() == weights(tmp_path / "b")[name].tobytes()
        assert array.tobytes() != weights(tmp_path / "c")[name].tobytes()


@pytest.mark.parametrize("strategy", ["pncs", "uniform"])
def test_clients_that_all_fail_end_the_run_with_the_reason(tmp_path: Path, strategy: str) -> None:
    with pytest.raises(SelectionError, match=r"client .*(nan|inf|finite)"):
        run(tmp_path, strategy=strategy, lr=1e30)


class Failing:
    """The app's clients, which all fail to train in some rounds."""

    def __init__(self, *rounds: int) -> None:
        self.rounds = rounds

    def __call__(self, message: Message, context: Context) -> Message:
        config = next(iter(message.content.config_records.values()), {})
        if message.metadata.message_type == "train" and config.get("server-round") in self.rounds:
            raise RuntimeError("this round is lost")
        return client_app(message, context)


def run_failing(output: Path, num_rounds: int, *rounds: int) -> list[dict[str, Any]]:
    config = Config.from_run_config(
        default_run_config()
        | {"num-rounds": num_rounds, "strategy": "uniform", "model": "linear", "device": "cpu"}
    )
    grid = InProcessGrid(Failing(*rounds), 4, config.to_run_config())  # type: ignore[arg-type]
    train(grid, config, output, lambda row: None)
    return read_rounds(output)


@pytest.mark.parametrize("lost", [(1,), (2,), (1, 2), (2, 4), (5,)])
def test_empty_round_costs_that_round_and_not_the_run(tmp_path: Path, lost: tuple[int]) -> None:
    rows = run_failing(tmp_path, 5, *lost)
    assert [bool(row["delivered"]) for row in rows] == [n not in lost for n in range(1, 6)]
    for row, after in pairwise(rows):
        assert (row["accuracy"] == after["accuracy"]) or after["round"] not in lost
    assert all("this round is lost" in str(rows[number - 1]["rejected"]) for number in lost)
    assert json.loads((tmp_path / "summary.json").read_text())["rounds"] == 5


@pytest.mark.parametrize(("num_rounds", "done"), [(6, 3), (2, 2)])
def test_run_ends_where_empty_rounds_follow_each_other_or_are_all(
    tmp_path: Path, num_rounds: int, done: int
) -> None:
    lost = (2, 3, 4) if num_rounds == 6 else (1, 2)
    with pytest.raises(EmptyRoundsError, match="this round is lost"):
        run_failing(tmp_path, num_rounds, *lost)
    assert not (tmp_path / "summary.json").exists()
    assert len([row for row in read_rounds(tmp_path) if row["accuracy"] is not None]) == done


def test_a_client_without_a_place_says_what_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeouts, "RETRY_IN_VAIN", 0.1)
    config = Config.from_run_config(default_run_config() | {"strategy": "uniform"})
    grid = InProcessGrid(client_app, 4, config.to_run_config())
    for context in grid.contexts.values():
        del context.node_config["num-partitions"]
    with pytest.raises(SelectionError, match="node config lacks 'num-partitions'"):
        train(grid, config, tmp_path, lambda row: None)


def test_uniform_aggregation_weighs_all_clients_alike() -> None:
    config = Config.from_run_config(default_run_config() | {"aggregation": "uniform"})
    assert build_strategy(config).base.weighted_by_key == "uniform-weight"  # type: ignore[attr-defined]


@pytest.mark.minutes
def test_a_model_of_torchvision_trains_with_its_counters(tmp_path: Path) -> None:
    run(
        tmp_path,
        num_clients=10,
        model="mobilenet_v3_small",
        strategy="uniform",
        num_rounds=1,
        partition="iid",
    )
    counters = [v for name, v in weights(tmp_path).items() if name.endswith("batches_tracked")]
    # 1442 examples among 10 clients, 32 in a step: five steps.
    assert {int(value) for value in counters} == {5}


def test_clients_examples_are_kept_only_while_there_is_room() -> None:
    config = Config.from_run_config(default_run_config())
    whole, bounded = (Holdings(config, 4, room) for room in (1 << 30, 0))
    one = sum(tensor.nbytes for tensor in whole.examples(0))
    roomy = Holdings(config, 4, 2 * one)
    for client in range(4):
        wanted = whole.examples(client)
        for other in (bounded, roomy):
            assert all(map(torch.equal, wanted, other.examples(client)))
    kept = [
        [holdings.examples(client)[0] is holdings.examples(client)[0] for client in range(4)]
        for holdings in (whole, bounded, roomy)
    ]
    assert [sum(each) for each in kept] == [4, 0, 2]
