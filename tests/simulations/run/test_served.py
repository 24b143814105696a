"""What a run notes of whom it serves, against the same worked out of its rounds and weights."""

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Context, Message
from torch import nn

from pncs_flower.fairness import gini, jain
from pncs_flower.simulations.client_app import app as client_app
from pncs_flower.simulations.config import Config, default_run_config
from pncs_flower.simulations.run.folder import read_rounds
from pncs_flower.simulations.run.in_process import InProcessGrid
from pncs_flower.simulations.run.served import KEYS, Served
from pncs_flower.simulations.run.training import evaluate, train
from pncs_flower.simulations.task import load_inputs
from pncs_flower.strategies import RoundRecord


def settings(**given: Any) -> Config:
    changed = {key.replace("_", "-"): value for key, value in given.items()}
    return Config.from_run_config(
        default_run_config()
        | {"num-rounds": 4, "model": "linear", "device": "cpu", "strategy": "uniform"}
        | changed
    )


def play(
    output: Path, clients: int, config: Config, lost: Collection[int] = ()
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Run the app, in which some clients never deliver."""

    def unreliable(message: Message, context: Context) -> Message:
        trains = message.metadata.message_type == "train" and "config" in message.content
        if trains and int(context.node_config["partition-id"]) in lost:
            raise OSError("no data")
        return client_app(message, context)

    grid = InProcessGrid(unreliable, clients, config.to_run_config())  # type: ignore[arg-type]
    train(grid, config, output, lambda row: None)
    return read_rounds(output), json.loads((output / "summary.json").read_text(encoding="utf-8"))


def test_turns_are_those_of_the_rounds(tmp_path: Path) -> None:
    rows, summary = play(tmp_path, 6, settings())
    times = [sum(str(k) in row["delivered"] for row in rows) for k in range(6)]
    assert sum(times) == 8
    assert summary["gini"] == pytest.approx(gini(times))
    assert summary["jain"] == pytest.approx(jain(times))
    assert summary["never-chosen"] == summary["never-delivered"] == times.count(0)
    assert summary["longest-wait"] == max(wait(rows, str(k)) for k in range(6))
    assert rows[0]["never-chosen"] == 4  # of the rounds up to each
    assert {key: rows[-1][key] for key in KEYS} == {key: summary[key] for key in KEYS}


def wait(rows: list[dict[str, Any]], client: str) -> int:
    waited = "".join("x" if client in row["delivered"] else " " for row in rows)
    return max(map(len, waited.split("x")))


def test_who_is_chosen_and_never_delivers_is_not_served(tmp_path: Path) -> None:
    rows, summary = play(tmp_path, 4, settings(num_rounds=8, num_selected=3), lost={1})
    assert "1" in {client for row in rows for client in row["chosen"]}
    assert (summary["never-chosen"], summary["never-delivered"]) == (0, 1)
    assert (summary["longest-wait"], summary["num-clients"]) == (8, 4)
    assert "1" not in summary["times-delivered"]
    assert summary["gini"] == pytest.approx(gini([0, *summary["times-delivered"].values()]))


def test_accuracies_are_those_of_the_labels_that_clients_hold(tmp_path: Path) -> None:
    config = settings(partition="dirichlet", dirichlet_alpha=0.3, seed=3)
    rows, summary = play(tmp_path, 12, config)
    inputs = load_inputs(config)
    with np.load(tmp_path / "weights.npz") as weights:
        model = [weights[name] for name in weights.files]
    images = inputs.test_tensors()[0].numpy().reshape(len(inputs.test_labels), -1)
    right = (images @ model[0].T + model[1]).argmax(1) == inputs.test_labels
    by_class = [right[inputs.test_labels == label].mean() for label in range(10)]
    by_client = [
        np.mean([by_class[label] for label in inputs.train_labels[part]])
        for part in inputs.divide(config, 12)
    ]
    assert summary["accuracy-by-class"] == pytest.approx(by_class)
    assert list(summary["accuracy-by-client"]) == [str(k) for k in range(12)]
    assert list(summary["accuracy-by-client"].values()) == pytest.approx(by_client)
    assert summary["mean-client-accuracy"] == pytest.approx(np.mean(by_client))
    assert summary["client-accuracy-variance"] == pytest.approx(np.var(by_client))
    assert summary["worst-tenth-accuracy"] == pytest.approx(np.mean(sorted(by_client)[:2]))
    assert [len(row["accuracy-by-class"]) for row in rows] == [10] * 4


def test_one_client_is_all(tmp_path: Path) -> None:
    _, summary = play(tmp_path, 1, settings(num_selected=1, partition="iid"))
    assert (summary["gini"], summary["jain"], summary["longest-wait"]) == (0.0, 1.0, 0)
    assert summary["client-accuracy-variance"] == 0.0
    # It holds all training examples, whose labels are not quite those of the test.
    assert summary["worst-tenth-accuracy"] == pytest.approx(summary["final-accuracy"], abs=0.01)


def test_clients_that_are_never_there_are_never_chosen() -> None:
    served = Served(settings())
    history = [RoundRecord(1, clients=["0", "1"], chosen=["0"], delivered=["0"])]
    found = served.after(history, [0.5] * 10, 4)
    assert (found["never-chosen"], found["jain"], found["num-clients"]) == (3, 0.25, 4)


def test_rounds_that_are_taken_up_count() -> None:
    turns = [["0"], ["1"], ["0"], []]
    history = [
        RoundRecord(n, clients=["0", "1"], chosen=["0", "1"], delivered=those)
        for n, those in enumerate(turns, start=1)
    ]
    by_round, at_once = Served(settings()), Served(settings())
    for number in range(1, 5):
        last = by_round.after(history[:number], [0.5] * 10, 2)
    assert at_once.after(history, [0.5] * 10, 2) == last
    assert (last["never-delivered"], last["longest-wait"]) == (0, 2)


def test_class_that_nobody_tests_does_not_count() -> None:
    # Of clients with labels of one class each, which some of them can be.
    served, config = Served(settings(shards_per_client=1)), settings(shards_per_client=1)
    inputs = load_inputs(config)
    own = [int(inputs.train_labels[part[0]]) for part in inputs.divide(config, 10)]
    by_class = [0.1 * label for label in range(9)]
    row = served.after([RoundRecord(1, clients=["0"])], [*by_class, None], 10)
    by_client = served.summary(row)["accuracy-by-client"]
    assert by_client[str(own.index(9))] is None
    assert by_client[str(own.index(8))] == pytest.approx(0.8)
    assert row["mean-client-accuracy"] == pytest.approx(0.4)
    assert row["worst-tenth-accuracy"] == pytest.approx(0.0)


def test_number_of_clients_that_cannot_be_leaves_their_accuracies_open() -> None:
    served = Served(settings())
    row = served.after([RoundRecord(1, clients=["a"], chosen=["a"])], [0.5] * 10, 7)  # no shards
    assert (row["worst-tenth-accuracy"], row["mean-client-accuracy"]) == (None, None)
    assert served.summary(row)["accuracy-by-client"] == {}
    assert row["never-chosen"] == 7
    json.dumps(row, allow_nan=False)


def test_run_of_an_older_release_says_nothing_of_it() -> None:
    assert Served(settings()).summary({"round": 1, "accuracy": 0.5}) == {}


def test_one_pass_finds_all_there_is_to_know_of_a_model() -> None:
    logits = torch.eye(4)[[0, 1, 1, 3, 0]]
    answers = torch.tensor([0, 1, 0, 3, 3])
    found = evaluate(nn.Identity(), logits, answers)
    assert found.score == 3 / 5
    assert found.by_class == (1 / 2, 1.0, None, 1 / 2)
    right, wrong = np.log(np.e + 3) - 1, np.log(np.e + 3)
    assert found.loss == pytest.approx((3 * right + 2 * wrong) / 5)
