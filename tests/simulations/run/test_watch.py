"""What is kept beside a run's records is what the rule saw, and what TensorBoard shows."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pncs_flower.simulations.client_app import app as client_app
from pncs_flower.simulations.config import Config, default_run_config
from pncs_flower.simulations.run.in_process import InProcessGrid
from pncs_flower.simulations.run.training import train


def run(output: Path, clients: int = 5, **settings: Any) -> list[dict[str, Any]]:
    changed = {key.replace("_", "-"): value for key, value in settings.items()}
    config = Config.from_run_config(
        default_run_config()
        | {"num-rounds": 2, "model": "linear", "device": "cpu", "shards-per-client": 2}
        | changed
    )
    rows: list[Any] = []
    train(InProcessGrid(client_app, clients, config.to_run_config()), config, output, rows.append)
    return rows


def test_the_similarities_are_those_that_the_choice_was_made_by(tmp_path: Path) -> None:
    for row in run(tmp_path, queue_length=0):
        seen = row["similarity"]
        values = np.array(seen["values"])
        assert seen["clients"] == row["answered"]
        first, second = (seen["clients"].index(client) for client in row["chosen"])
        assert values[first, second] == pytest.approx(row["mean_similarity"], abs=1e-4)
        off_diagonal = values[~np.eye(len(values), dtype=bool)]
        assert values[first, second] == off_diagonal.min()


def test_a_watched_run_has_the_name_and_choices_of_any_other(tmp_path: Path) -> None:
    many, few = run(tmp_path / "many", clients=25), run(tmp_path / "few")
    assert "similarity" not in many[0]
    assert many[0]["rule"] == few[0]["rule"]


def test_other_rules_have_no_similarities(tmp_path: Path) -> None:
    assert all("similarity" not in row for row in run(tmp_path, strategy="uniform"))


def test_tensorboard_shows_what_was_measured(tmp_path: Path) -> None:
    reader = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator",
        reason="TensorBoard is not installed",
    )
    rows = run(tmp_path, tensorboard=True)
    log = reader.EventAccumulator(str(tmp_path / "tensorboard"))
    log.Reload()
    for name, values in (
        ("test/accuracy", [row["accuracy"] for row in rows]),
        ("round/bytes up", [sum(row["bytes_up"].values()) for row in rows]),
        ("round/mean similarity", [row["mean_similarity"] for row in rows]),
    ):
        assert [event.step for event in log.Scalars(name)] == [1, 2]
        assert [event.value for event in log.Scalars(name)] == pytest.approx(values, rel=1e-6)


def test_without_tensorboard_the_setting_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(ValueError, match="TensorBoard is not installed: pip install tensorboard"):
        run(tmp_path, tensorboard=True)
