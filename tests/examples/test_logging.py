"""The examples of logging elsewhere, each with its tool, which stays on this machine."""

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from apps import numpy_app
from flwr.serverapp.strategy import FedAvg

from pncs_flower.clients import summary_mod
from pncs_flower.simulations.run.in_process import InProcessGrid
from pncs_flower.strategies import RoundRecord, RoundRobin

FOLDER = Path(__file__).parents[2] / "examples" / "logging"
ROUNDS = 3


def load(name: str) -> ModuleType:
    """Import an example, whose tool is there."""
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def train(on_record: Any) -> list[RoundRecord]:
    """Run three rounds, none of which the tool has failed in."""
    strategy = RoundRobin(FedAvg(), num_selected=2, on_record=on_record)
    grid = InProcessGrid(numpy_app.make_app(summary_mod), 4)
    strategy.start(
        grid,
        numpy_app.initial_arrays(),
        num_rounds=ROUNDS,
        evaluate_fn=numpy_app.sum_of_weights,
    )
    assert [note for record in strategy.history for note in record.notes] == []
    return strategy.history


def sent(history: list[RoundRecord]) -> list[tuple[int, float]]:
    return [(record.round, float(sum(record.bytes_up.values()))) for record in history]


def test_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow", reason="MLflow is not installed")
    monkeypatch.chdir(tmp_path)
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/runs.db")
    with mlflow.start_run() as run:
        history = train(load("with_mlflow").log)
    client = mlflow.MlflowClient()
    seen = client.get_metric_history(run.info.run_id, "bytes up")
    assert [(each.step, each.value) for each in seen] == sent(history)
    for name in ("evaluate/loss", "sum"):
        assert len(client.get_metric_history(run.info.run_id, name)) == ROUNDS


def test_wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb", reason="Weights & Biases is not installed")
    monkeypatch.setenv("WANDB_SILENT", "true")
    example = load("with_wandb")
    logged: list[tuple[int, float]] = []
    with wandb.init(mode="offline", dir=tmp_path, project="federation") as run:
        history = train(example.log_to(run))
        assert run.step == ROUNDS
        logged = [(ROUNDS, run.summary["bytes up"])]
        assert {"delivered", "evaluate/loss", "sum"} <= set(run.summary.keys())
    assert logged == sent(history)[-1:]
    (file,) = tmp_path.rglob("run-*.wandb")
    assert file.stat().st_size > 0


def test_tensorboard(tmp_path: Path) -> None:
    reader = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator",
        reason="TensorBoard is not installed",
    )
    pytest.importorskip("torch", reason="needs PyTorch")
    from torch.utils.tensorboard import SummaryWriter

    history = train(load("with_tensorboard").log_to(SummaryWriter(str(tmp_path))))
    log = reader.EventAccumulator(str(tmp_path))
    log.Reload()
    assert [(e.step, e.value) for e in log.Scalars("bytes up")] == sent(history)
    for name in ("evaluate/loss", "sum"):
        assert len(log.Scalars(name)) == ROUNDS


@pytest.mark.parametrize("name", ["with_wandb", "with_mlflow", "with_tensorboard"])
def test_what_is_to_be_copied_is_short(name: str) -> None:
    text = (FOLDER / f"{name}.py").read_text(encoding="utf-8")
    _, _, function = text.partition("\ndef ")
    assert len([line for line in function.splitlines() if line.strip()]) <= 11
