"""Every selection rule on Ray, with the bits of one process, whatever the number of workers."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from apps import deployed, on_ray
from deployment.conftest import outcome
from ray_process import on_ray as run_on_ray

from pncs_flower.simulations.client_app import app as client_app
from pncs_flower.simulations.config import Config, default_run_config
from pncs_flower.simulations.run.in_process import InProcessGrid
from pncs_flower.simulations.run.training import train

ROUNDS, CLIENTS = 5, 8
# What each rule asks of a client: nothing, a number, a loss, a gradient or a sketch of the update.
SETTINGS: dict[str, dict[str, str | int | float]] = {
    "pncs": {"rule.sketch": "coordinates:50@float16"},
    "gradient-memory": {
        "rule.sketch": "count:32",
        "rule.candidates": 5,
        "devices": "cross-silo",
    },
    "uniform": {},
    "proportional": {},
    "round-robin": {},
    "active-fl": {},
    "power-of-choice": {"rule.variant": "cpow-d"},
    "fedcor": {},
    "divfl": {"rule.summary": "gradient"},
    "oort": {"devices": "cross-silo", "extra": 1, "deadline": 20.0},
    "gradient-norm": {},
    "sketched-mean": {"rule.candidates": 5},
}

pytestmark = pytest.mark.ray


def result(folder: Path) -> tuple[list[Any], dict[str, bytes]]:
    """Return what must not depend on the engine: the choices and the bits of the weights."""
    rows = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    facts = ("asked", "chosen", "delivered", "accuracy")
    facts += ("clock", "simulated_seconds", "timeline")  # of those with devices
    choices = [[row[fact] for fact in facts] for row in rows]
    with np.load(folder / "weights.npz", allow_pickle=False) as weights:
        return choices, {name: weights[name].tobytes() for name in weights.files}


def config(strategy: str) -> Config:
    settings = {"strategy": strategy, "num-rounds": ROUNDS, "seed": 3, **SETTINGS[strategy]}
    return Config.from_run_config(default_run_config() | settings)


@pytest.fixture(scope="module")
def app_on_ray(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The product's own app with each rule, one after the other on one worker."""
    folder = tmp_path_factory.mktemp("app")
    runs = [
        {"config": config(strategy).to_run_config(), "output": str(folder / strategy)}
        for strategy in SETTINGS
    ]
    for run in runs:
        Path(str(run["output"])).mkdir()
    done = run_on_ray(CLIENTS, *runs, workers=1)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.minutes
@pytest.mark.parametrize("strategy", SETTINGS)
def test_the_app_on_one_worker_has_the_bits_of_one_process(
    strategy: str, app_on_ray: Path, tmp_path: Path
) -> None:
    settings = config(strategy)
    grid = InProcessGrid(client_app, CLIENTS, settings.to_run_config())
    train(grid, settings, tmp_path, lambda row: None)
    choices, weights = result(app_on_ray / strategy)
    assert [len(delivered) for _, _, delivered, *_ in choices] == [2] * ROUNDS
    assert (choices, weights) == result(tmp_path)


OPTIONS: dict[str, dict[str, Any]] = {
    "PNCS": {"sketch": "coordinates:6@float16", "combine": "sketched-mean"},
    "SketchedMean": {"candidates": 4},
    "GradientMemory": {"sketch": "count:8", "candidates": 4},
    "DivFL": {"summary": "gradient"},
    "GradientNorm": {},
    "PowerOfChoice": {"candidates": 4},
    "FedCor": {},
    "ActiveFL": {},
    "Oort": {},
    "UniformSelection": {"combine": "fedvarp"},
    "ProportionalSelection": {},
    "RoundRobin": {"combine": "mifa"},
}


@pytest.fixture(scope="module")
def all_rules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All rules one after the other on two workers, whose replies come in any order."""
    folder = tmp_path_factory.mktemp("two-workers")
    runs = [{**run_settings(rule), "output": str(folder / rule)} for rule in OPTIONS]
    for run in runs:
        Path(run["output"]).mkdir()
    done = run_on_ray(6, *runs, workers=2)
    assert done.returncode == 0, done.stderr
    return folder


def run_settings(rule: str) -> dict[str, Any]:
    options = json.dumps({"seed": 7, "wait_timeout": 300, **OPTIONS[rule]})
    return {**deployed.SETTINGS, "rule": rule, "rounds": ROUNDS, "options": options}


@pytest.mark.parametrize("rule", OPTIONS)
def test_two_workers_and_shuffled_replies_give_the_bits_of_one_process(
    rule: str, all_rules: Path, tmp_path: Path
) -> None:
    settings = {**run_settings(rule), "output": str(tmp_path)}
    deployed.run(InProcessGrid(on_ray.make_app(settings), 6), settings)
    here = outcome(tmp_path)
    assert all(record["delivered"] for record in here["history"])
    assert outcome(all_rules / rule) == here
