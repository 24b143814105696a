"""Every selection rule by its name through `flwr run` on Ray, with the bits of one process."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pncs_flower.simulations.client_app import app as client_app
from pncs_flower.simulations.config import Config, default_run_config
from pncs_flower.simulations.in_process import InProcessGrid
from pncs_flower.simulations.training import train

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
