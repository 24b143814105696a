"""`pncs run` where people start it: odd folders, no home, clients of one example."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pncs_flower.simulations.client_app import app as client_app
from pncs_flower.simulations.config import Config, default_run_config
from pncs_flower.simulations.in_process import InProcessGrid
from pncs_flower.simulations.inputs import load_inputs
from pncs_flower.simulations.results import read_rounds
from pncs_flower.simulations.training import train

PNCS = [sys.executable, "-c", "from pncs_flower.simulations.cli import main; main()", "run"]


def pncs(
    *arguments: str, cwd: Path, without: tuple[str, ...] = (), **environment: str
) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if name not in without}
    return subprocess.run(
        [*PNCS, "--engine", "in-process", *arguments],
        cwd=cwd,
        env={**env, **environment},
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=240,
        check=False,
    )


def test_a_folder_with_spaces_and_umlauts_and_no_home(tmp_path: Path) -> None:
    """Relative and absolute; a run there is also made longer."""
    place = tmp_path / "Müllers Läufe 2024"
    place.mkdir()
    without = ("HOME", "USERPROFILE", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "MPLCONFIGDIR")
    output = "erster Versuch, größer"
    first = pncs("--rounds", "2", "--output", output, cwd=place, without=without)
    assert first.returncode == 0, first.stderr
    longer = pncs("--resume", str(place / output), "--rounds", "3", cwd=place, without=without)
    assert longer.returncode == 0, longer.stderr
    assert [row["round"] for row in read_rounds(place / output)] == [1, 2, 3]
    summary = json.loads((place / output / "summary.json").read_text(encoding="utf-8"))
    assert summary["rounds"] == 3


@pytest.mark.skipif(sys.platform == "win32", reason="has no such signals")
@pytest.mark.parametrize("name", ["SIGHUP", "SIGINT"])
def test_a_console_that_hangs_up_or_a_key_ends_a_run_that_can_go_on(
    tmp_path: Path, name: str
) -> None:
    number = signal.Signals[name]
    output = tmp_path / "run"
    process = subprocess.Popen(
        [*PNCS, "--engine", "in-process", "--rounds", "2000", "--output", str(output)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 120
    while not (output.exists() and list(output.glob("**/rounds.jsonl"))):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + number, errors
    assert "Traceback" not in errors
    done = len(read_rounds(output))
    longer = pncs("--resume", str(output), "--rounds", str(done + 1), cwd=tmp_path)
    assert longer.returncode == 0, longer.stderr


@pytest.mark.parametrize("strategy", ["pncs", "power-of-choice"])
def test_dirichlet_parts_of_one_or_two_examples(tmp_path: Path, strategy: str) -> None:
    """Far less than a batch, of one class: such clients are asked, chosen and used as others."""
    settings: dict[str, Any] = {
        "num-rounds": 2,
        "device": "cpu",
        "strategy": strategy,
        "partition": "dirichlet",
        "dirichlet-alpha": 0.2,
        "num-selected": 60,
        "queue-length": 0,
    }
    config = Config.from_run_config(default_run_config() | settings)
    sizes = [len(part) for part in load_inputs(config).divide(config, 100)]
    assert min(sizes) <= 2
    grid = InProcessGrid(client_app, 100, config.to_run_config())
    train(grid, config, tmp_path, lambda row: None)
    rows = read_rounds(tmp_path)
    assert [len(row["delivered"]) for row in rows] == [60, 60]
    assert all(row["rejected"] == {} for row in rows)
    with np.load(tmp_path / "weights.npz") as weights:
        assert all(np.isfinite(weights[name]).all() for name in weights.files)
