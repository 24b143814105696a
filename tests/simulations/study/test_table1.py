"""The study of client pairs: features, labels, models, and what the table says of them."""

import csv
import time
from contextlib import suppress
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import optimize, special, stats
from typer.testing import CliRunner

from pncs_flower import cosine
from pncs_flower.clients.training import full_batch_gradient
from pncs_flower.files import PARTIAL, held
from pncs_flower.simulations.cli import app
from pncs_flower.simulations.config import Config, default_run_config
from pncs_flower.simulations.data.partitions import partition_examples
from pncs_flower.simulations.study.features import FEATURES, client_pairs, pair_features
from pncs_flower.simulations.study.model import (
    fit_pair_model,
    label_pairs,
    relative_losses,
)
from pncs_flower.simulations.study.observe import (
    observe_pairs,
    read_observations,
    write_observations,
)
from pncs_flower.simulations.study.study import Study, run_study
from pncs_flower.simulations.sweep import pool as pool_module
from pncs_flower.simulations.sweep.pool import Moved
from pncs_flower.simulations.task import initial_model, load_inputs


def gradients(clients: int = 4, size: int = 30) -> np.ndarray:
    return np.random.default_rng(3).standard_t(4, size=(clients, size))


def config(**settings: Any) -> Config:
    own = {key.replace("_", "-"): value for key, value in settings.items()}
    study = {"model": "linear", "num-rounds": 2, "lr": 0.5, "shards-per-client": 2}
    return Config.from_run_config(default_run_config() | study | own)


@pytest.mark.parametrize("name", FEATURES)
def test_features_are_those_of_their_formulas(name: str) -> None:
    rows = gradients()
    word, _, order = name.rpartition(" ")

    def expected(g: np.ndarray, h: np.ndarray) -> float:
        if name == "kurtosis sum":
            return float(stats.kurtosis(g, fisher=False) + stats.kurtosis(h, fisher=False))
        if name == "covariance":
            return float(np.cov(g, h, bias=True)[0, 1])
        p = int(order)
        if word == "cos":
            return cosine(g, h, p=p)
        if word == "distance":
            return float(np.linalg.norm(g - h, ord=p))
        return float(np.linalg.norm(g, ord=p) + np.linalg.norm(h, ord=p))

    wanted = [expected(g, h) for g, h in combinations(rows, 2)]
    np.testing.assert_allclose(pair_features(rows)[name], wanted, rtol=1e-9)


def test_labels_are_scaled_among_the_pairs_of_a_round() -> None:
    accuracies = np.array([[0.2, 0.4, 0.3], [0.5, 0.5, 0.5]])
    np.testing.assert_allclose(label_pairs(accuracies, "min-max"), [[0, 1, 0.5], [0.5] * 3])
    powers = np.exp([0.2, 0.4, 0.3])
    np.testing.assert_allclose(
        label_pairs(accuracies, "softmax"), [powers / powers.sum(), [1 / 3] * 3]
    )


def test_the_relative_loss_is_0_for_the_best_pair_and_1_for_the_worst() -> None:
    losses = np.array([[1.0, 3.0, 2.0]] * 3 + [[2.0, 2.0, 2.0]])
    scores = np.array([[9, 0, 0], [0, 9, 0], [0, 0, 9], [9, 0, 0]], dtype=float)
    np.testing.assert_allclose(relative_losses(losses, scores), [0, 1, 0.5, 0])


def test_soft_labels_give_back_the_weights_that_made_them() -> None:
    x = np.random.default_rng(0).normal(size=(2, 4000))
    labels = 1 / (1 + np.exp(-(1.5 * x[0] - 0.5 * x[1])))
    model = fit_pair_model({"a": x[0], "b": x[1]}, labels, ("a", "b"))
    np.testing.assert_allclose(np.divide(model.weights, model.deviations), [1.5, -0.5], atol=0.02)


def test_weights_are_settled_also_where_labels_hardly_differ() -> None:
    x = np.random.default_rng(0).normal(size=(2, 20, 45))
    labels = label_pairs(0.1 * (x[0] + x[1]), "softmax")
    model = fit_pair_model({"a": x[0], "b": x[1]}, labels, ("a", "b"))
    standard = (x.reshape(2, -1) - np.c_[model.means]) / np.c_[model.deviations]

    def errors(intercept: float) -> np.ndarray:
        return special.expit(intercept + model.weights @ standard) - labels.ravel()

    intercept = optimize.brentq(lambda value: errors(value).sum(), -9, 9)
    # The slope of the loss, with its penalty, which is 0 where the loss is least.
    slope = standard @ errors(intercept) + model.weights
    np.testing.assert_allclose(slope, 0, atol=1e-6)


def test_each_pair_is_judged_by_the_model_that_it_would_make() -> None:
    settings = config()
    seen = observe_pairs(settings, 10)
    inputs = load_inputs(settings)
    parts = partition_examples(inputs.train_labels, 10, "shards", shards_per_client=2, seed=0)
    model = initial_model(settings, inputs)
    examples, labels = inputs.test_tensors()
    for number in range(2):
        found = [full_batch_gradient(model, inputs.train_tensors(part), 0) for part in parts]
        before = {name: value.clone() for name, value in model.state_dict().items()}
        for pair, (i, j) in enumerate(client_pairs(10)):
            if pair % 11:
                continue
            model.load_state_dict(
                {n: w - 0.5 * (found[i][n] + found[j][n]) / 2 for n, w in before.items()}
            )
            with torch.no_grad():
                logits = model(examples)
            accuracy = float((logits.argmax(1) == labels).double().mean())
            assert seen["accuracy"][number, pair] == pytest.approx(accuracy, abs=0.003)
            loss = float(torch.nn.functional.cross_entropy(logits, labels))
            assert seen["loss"][number, pair] == pytest.approx(loss, rel=1e-5)
        # The next round starts where all clients together lead.
        model.load_state_dict(
            {n: w - 0.5 * torch.stack([g[n] for g in found]).mean(0) for n, w in before.items()}
        )


def test_a_model_of_several_layers_is_refused() -> None:
    with pytest.raises(ValueError, match="model = 'mlp' trains several layers"):
        observe_pairs(config(model="mlp"), 10)


def test_one_seed_is_too_few() -> None:
    with pytest.raises(ValueError, match="seeds = 1 must be at least 2"):
        Study({}, seeds=1)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    path.write_bytes(b"PK\x03\x04 not quite")
    with pytest.raises(ValueError, match=r"x.npz is damaged .*: delete it and run again"):
        read_observations(path)


def test_a_file_of_other_features_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    one = np.zeros((1, 10))
    np.savez(path, features=np.zeros((3, 1, 10)), accuracy=one, loss=one)
    with pytest.raises(ValueError, match=r"x.npz is damaged .*: delete it and run again"):
        read_observations(path)


@pytest.mark.parametrize("forks", [True, pytest.param(False, marks=pytest.mark.ray)])
def test_a_study_observes_the_same_in_other_processes(
    forks: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_module, "_FORKS", forks)  # else it is Ray that starts them
    study = Study({"model": "linear", "num-rounds": 1, "lr": 0.5}, shards=(1, 2), seeds=2)
    done: list[tuple[int, int]] = []
    here = run_study(study, tmp_path / "here", 0, lambda *_: None)
    there = run_study(study, tmp_path / "there", 2, lambda *each: done.append(each))
    assert done == [(1, 4), (2, 4), (3, 4), (4, 4)]
    for name, values in here.items():
        np.testing.assert_array_equal(values, there[name])
        assert values.shape == (2, 2, 1, 45)


def sleep(seconds: float, moved: Moved) -> None:
    time.sleep(seconds)


def test_a_study_that_is_stopped_does_not_wait_for_what_is_left() -> None:
    started = time.monotonic()
    seconds = {Path(str(number)): 100 * number for number in range(4)}
    with suppress(SystemExit), pool_module.pool(2) as run_jobs:
        for path, _ in run_jobs(sleep, seconds, ()):
            assert path == Path("0")
            raise SystemExit(130)
    assert time.monotonic() - started < 60


def test_what_fails_in_a_study_is_told_as_it_is(tmp_path: Path) -> None:
    command = "reproduce table1 --quick --workers 0 --set model=mlp --output"
    done = CliRunner().invoke(app, [*command.split(), str(tmp_path)])
    assert done.exit_code == 1
    assert "Error: model = 'mlp' trains several layers" in done.output
    assert "Traceback" not in done.output
    assert "--traceback" not in done.output


def test_the_table_is_reproduced_by_one_command(tmp_path: Path) -> None:
    command = "reproduce table1 --quick --seeds 2 --workers 0 --set num-rounds=2 --output"
    done = CliRunner().invoke(app, [*command.split(), str(tmp_path)])
    assert done.exit_code == 0, done.output
    folder = tmp_path / "table1-quick"
    text = (folder / "report.html").read_text()
    assert '<svg role="img" aria-label="Relative loss over iterations' in text
    with (folder / "table1.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == (len(FEATURES) + 2) * 3 * 2 * 2
    assert all(0 <= float(row["relative loss"]) <= 1 for row in rows)


def test_one_study_at_a_time_writes_to_a_folder(tmp_path: Path) -> None:
    study = Study({"model": "linear", "num-rounds": 1, "lr": 0.5}, shards=(2,), seeds=2)
    with (
        held(tmp_path),
        pytest.raises(ValueError, match="another process still writes to"),
    ):
        run_study(study, tmp_path, 0, lambda *_: None)
    assert run_study(study, tmp_path, 0, lambda *_: None)["loss"].shape == (1, 2, 1, 45)
    assert not list(tmp_path.glob(f"*{PARTIAL}"))


def test_observations_are_whole_or_what_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, path = observe_pairs(config(num_rounds=1), 5), tmp_path / "run.npz"
    write_observations(path, seen)
    before = path.read_bytes()

    def half(file: Any, **arrays: Any) -> None:
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", half)
    with pytest.raises(OSError, match="No space"):
        write_observations(path, seen)
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["run.npz"]
