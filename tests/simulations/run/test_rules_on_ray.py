"""Every selection rule on Ray, with the bits of one process, whatever the number of workers."""

import json
import os
import subprocess
import sys
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

PNCS = [sys.executable, "-c", "from pncs_flower.simulations.cli import main; main()", "run"]
ROUNDS, CLIENTS = 5, 8
# What each rule asks of a client: nothing, a number, a loss, a gradient or a sketch of the update.
SETTINGS: dict[str, dict[str, str | int]] = {
    "pncs": {"sketch": "coordinates:50@float16"},
    "gradient-memory": {"sketch": "count:32", "candidates": 5},
    "uniform": {},
    "round-robin": {},
    "active-fl": {},
    "power-of-choice": {"variant": "cpow-d"},
    "fedcor": {},
    "divfl": {"summary": "gradient"},
    "oort": {},
    "gradient-norm": {},
}

pytestmark = pytest.mark.slow


def result(folder: Path) -> tuple[list[Any], dict[str, bytes]]:
    """Return what must not depend on the engine: the choices and the bits of the weights."""
    rows = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    choices = [(row["asked"], row["chosen"], row["delivered"], row["accuracy"]) for row in rows]
    with np.load(folder / "weights.npz", allow_pickle=False) as weights:
        return choices, {name: weights[name].tobytes() for name in weights.files}


@pytest.mark.parametrize("strategy", SETTINGS)
def test_rule_runs_on_ray_with_the_bits_of_one_process(strategy: str, tmp_path: Path) -> None:
    on_ray, here = tmp_path / "ray", tmp_path / "here"
    here.mkdir()
    settings = {"strategy": strategy, "num-rounds": ROUNDS, "seed": 3, **SETTINGS[strategy]}
    arguments = [f"--set={name}={value}" for name, value in settings.items()]
    workers = min(2, os.cpu_count() or 1)
    done = subprocess.run(
        [*PNCS, *arguments, "--clients", str(CLIENTS), "--output", str(on_ray)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert f"{workers} at once" in done.stdout

    config = Config.from_run_config(default_run_config() | settings)
    grid = InProcessGrid(client_app, CLIENTS, config.to_run_config())
    train(grid, config, here, lambda row: None)

    choices, weights = result(on_ray)
    assert [len(delivered) for _, _, delivered, _ in choices] == [2] * ROUNDS
    assert (choices, weights) == result(here)


OPTIONS: dict[str, dict[str, Any]] = {
    "PNCS": {"queue_length": 2, "sketch": "coordinates:6@float16"},
    "GradientMemory": {"sketch": "count:8", "candidates": 4},
    "DivFL": {"summary": "gradient"},
    "GradientNorm": {},
    "PowerOfChoice": {"candidates": 4},
    "FedCor": {},
    "ActiveFL": {},
    "Oort": {},
    "UniformSelection": {},
    "RoundRobin": {},
}


@pytest.fixture(scope="module", params=[1, 2])
def all_rules(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All rules one after the other in one simulation, whose replies come in any order."""
    folder = tmp_path_factory.mktemp(f"workers-{request.param}")
    runs = [{**run_settings(rule), "output": str(folder / rule)} for rule in OPTIONS]
    for run in runs:
        Path(run["output"]).mkdir()
    done = run_on_ray(6, *runs, workers=request.param)
    assert done.returncode == 0, done.stderr
    return folder


def run_settings(rule: str) -> dict[str, Any]:
    options = json.dumps({"seed": 7, "wait_timeout": 300, **OPTIONS[rule]})
    return {**deployed.SETTINGS, "rule": rule, "rounds": ROUNDS, "options": options}


@pytest.mark.parametrize("rule", OPTIONS)
def test_one_worker_or_two_and_shuffled_replies_give_the_bits_of_one_process(
    rule: str, all_rules: Path, tmp_path: Path
) -> None:
    settings = {**run_settings(rule), "output": str(tmp_path)}
    deployed.run(InProcessGrid(on_ray.make_app(settings), 6), settings)
    here = outcome(tmp_path)
    assert all(record["delivered"] for record in here["history"])
    assert outcome(all_rules / rule) == here
