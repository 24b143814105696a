"""Numbers in place of classes: the loss, R², the division of examples, and words that say so."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from sklearn.datasets import load_diabetes
from sklearn.metrics import r2_score
from torch import nn

from pncs_flower.simulations.client_app import app as client_app
from pncs_flower.simulations.config import Config, default_run_config
from pncs_flower.simulations.data.datasets import load_dataset
from pncs_flower.simulations.data.examples import classes_of
from pncs_flower.simulations.objective import loss_function, r_squared
from pncs_flower.simulations.report.of_run import final_table, round_line
from pncs_flower.simulations.report.of_sweep import write_report
from pncs_flower.simulations.report.picture_of_run import draw_rounds
from pncs_flower.simulations.run.folder import read_rounds, rounds_done
from pncs_flower.simulations.run.in_process import InProcessGrid
from pncs_flower.simulations.run.training import evaluate, train
from pncs_flower.simulations.sweep.results import read_results
from pncs_flower.simulations.sweep.run import run_sweep
from pncs_flower.simulations.sweep.sweep import Sweep
from pncs_flower.simulations.task import load_inputs


def config(**settings: Any) -> Config:
    own = {key.replace("_", "-"): value for key, value in settings.items()}
    return Config.from_run_config(
        default_run_config()
        | {"dataset": "diabetes", "lr": 0.03, "num-rounds": 3, "device": "cpu"}
        | {"shards-per-client": 2}
        | own
    )


def run(folder: Path, **settings: Any) -> list[dict[str, Any]]:
    own = config(**settings)
    train(InProcessGrid(client_app, 5, own.to_run_config()), own, folder, lambda row: None)
    return read_rounds(folder)


def test_diabetes_is_that_of_scikit_learn_standardized_by_the_training_part() -> None:
    data = load_dataset("diabetes")
    theirs = np.column_stack(load_diabetes(return_X_y=True, scaled=False))
    test = np.arange(442) % 5 == 4
    scaled = (theirs - theirs[~test].mean(0)) / theirs[~test].std(0)
    assert np.allclose(data.train, scaled[~test, :-1], atol=1e-6)
    assert np.allclose(data.test_labels, scaled[test, -1], atol=1e-6)
    assert (data.train.dtype, data.train_labels.dtype) == (np.float32, np.float32)


def test_r_squared_is_that_of_scikit_learn() -> None:
    outputs = torch.randn(50, 1, generator=torch.Generator().manual_seed(0))
    labels = outputs[:, 0] + 0.5 * torch.randn(50, generator=torch.Generator().manual_seed(1))
    found = evaluate(nn.Identity(), outputs, labels)
    assert found.score == pytest.approx(r2_score(labels, outputs[:, 0]), abs=1e-6)
    assert found.loss == pytest.approx(float(((labels - outputs[:, 0]) ** 2).mean()), rel=1e-6)
    assert found.scores.keys() == {"r2", "loss"}
    assert found.by_class == ()


def test_r_squared_is_at_least_minus_one_and_always_a_number() -> None:
    labels = torch.tensor([0.0, 2.0])
    assert r_squared(0.25, labels) == 0.75
    assert [r_squared(e, labels) for e in (5.0, float("inf"), float("nan"))] == [-1, -1, -1]
    assert [r_squared(e, torch.ones(3)) for e in (0.0, 0.1)] == [1, 0]


def test_the_loss_follows_the_labels() -> None:
    outputs = torch.tensor([[1.0], [3.0]])
    assert loss_function(outputs, torch.tensor([0.0, 1.0])).item() == 2.5
    assert loss_function(torch.zeros(2, 4), torch.tensor([0, 3])).item() == pytest.approx(
        np.log(4), abs=1e-6
    )


@pytest.mark.parametrize("labels", [[3, 1, 2], [True, False], []])
def test_classes_are_left_as_they_are(labels: list[Any]) -> None:
    assert classes_of(np.array(labels, dtype=np.int64)).tolist() == labels


def test_numbers_are_divided_as_ten_classes_by_their_size() -> None:
    labels = np.random.default_rng(0).permutation(np.arange(20, dtype=np.float32))
    assert classes_of(labels).tolist() == (labels // 2).astype(int).tolist()
    assert classes_of(np.float32([1.0])).tolist() == [0]
    inputs = load_inputs(config(shards_per_client=1))
    parts = inputs.divide(config(shards_per_client=1), 10)
    spans = sorted((inputs.train_labels[p].min(), inputs.train_labels[p].max()) for p in parts)
    for (_, high), (low, _) in pairwise(spans):
        assert high <= low


@pytest.mark.parametrize("strategy", ["pncs", "sketched-mean", "uniform", "divfl", "gradient-norm"])
def test_rules_train_and_the_words_are_those_of_the_score(tmp_path: Path, strategy: str) -> None:
    rows = run(tmp_path, strategy=strategy, num_rounds=8, partition="iid")
    assert all("accuracy" not in row for row in rows)
    assert rows[-1]["r2"] > 0.2 > rows[0]["loss"] - 1
    assert rounds_done(tmp_path) == 8
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["final-r2"] == rows[-1]["r2"]
    assert summary["best-r2"] >= summary["mean-r2-of-last-5-rounds"]
    assert "  R² 0." in round_line(rows[-1], 8)
    console = Console(record=True, width=120)
    console.print(final_table(tmp_path))
    shown = console.export_text()
    assert "R² " in shown
    assert "ccuracy" not in shown
    assert draw_rounds(tmp_path).stat().st_size > 1000


def test_a_run_stops_when_its_score_gets_no_better(tmp_path: Path) -> None:
    rows = run(tmp_path, num_rounds=60, strategy="uniform", stop_after=1)
    assert len(rows) < 60
    assert rows[-1]["notes"][-1].startswith("stopped early: no better R² for 1 round; the best")


def test_it_is_judged_by_validation_examples_of_every_size() -> None:
    inputs = load_inputs(config(evaluate_on="validation"))
    assert len(inputs.test_labels) == 30  # three of each tenth
    assert inputs.test_labels.min() < -1 < 1.5 < inputs.test_labels.max()


def test_a_sweep_names_the_score_on_its_page(tmp_path: Path) -> None:
    sweep = Sweep(
        title="numbers",
        rules=("pncs", "uniform"),
        clients=5,
        seeds=2,
        settings={"dataset": "diabetes", "num-rounds": 2, "lr": 0.03},
    )
    assert run_sweep(sweep, tmp_path, 0, lambda *_: None) == {}
    page = write_report(tmp_path, read_results(tmp_path)).read_text(encoding="utf-8")
    assert ">R² of both rounds</h2>" in page
    assert ">Accuracy" not in page
    assert "What it takes to reach an R²" in page
    assert (tmp_path / "rounds.csv").read_text(encoding="utf-8").splitlines()[0].count("R²") == 1


def test_a_network_for_images_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'cnn' takes images, .* numbers: set model to linear or"):
        load_inputs(config(model="cnn"))
