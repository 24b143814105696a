"""On Ray, clients raise, hang, and take their worker with them: what it costs, and what is told.

One run that is stopped by a dead worker, and a second start that goes on with it to the end, since
most of the time is spent in Ray's start. A node cannot leave a simulation.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from apps import deployed, faulty_app
from deployment.conftest import read_history
from fault_story import DIES, RaisingAndHanging, Story, raising_and_hanging
from ray_process import on_ray

from pncs_flower.simulations.run.in_process import InProcessGrid

pytestmark = [
    pytest.mark.ray,
    pytest.mark.minutes,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(sys.platform != "linux", reason="looks at processes in /proc"),
]

CLIENTS, ROUNDS, PATIENCE = 3, 9, 10  # clients, rounds, seconds


@dataclass
class Told(Story):
    """What is left of the run."""

    first: subprocess.CompletedProcess[str]
    second: subprocess.CompletedProcess[str]
    last_model_to_end: float  # seconds
    rounds_at_death: Sequence[int]


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Told:
    folder = tmp_path_factory.mktemp("story")
    options = {
        "summary": "gradient",
        "queue_length": 0,
        "summary_timeout": PATIENCE,
        "wait_timeout": 300,  # Ray's start, on a busy machine
        "checkpoint": str(folder / "checkpoint"),
    }
    settings = {
        "rounds": ROUNDS,
        "evaluate": 0.0,
        "timeout": float(PATIENCE),
        "options": json.dumps(options),
        "output": str(folder),
    }
    # The first client is left out of the choice, so that the second is among the chosen.
    troubles = [
        " ".join(
            [
                raising_and_hanging(PATIENCE),
                *(f"train/{DIES}/{client}/die" for client in range(CLIENTS)),
            ]
        ),
        f"summarize/{ROUNDS}/0/raise train/{ROUNDS}/1/hang:1000",
    ]
    first = on_ray(CLIENTS, {**settings, "trouble": troubles[0]})
    rounds_at_death = [record["round"] for record in read_history(folder)]
    second = on_ray(CLIENTS, {**settings, "trouble": troubles[1]})
    end = time.time()
    models = [json.loads(line) for line in (folder / "models.jsonl").read_text().splitlines()]
    last_model_to_end = end - models[-1]["time"]
    history = read_history(folder)
    return Told(history, models, first, second, last_model_to_end, rounds_at_death)


class TestRaisingAndHanging(RaisingAndHanging):
    pass


def test_clients_that_hung_take_part_again(story: Told) -> None:
    record = story.record(DIES)
    assert sorted(record["answered"]) == ["0", "1", "2"]
    assert len(record["delivered"]) == 2


def test_worker_that_is_killed_stops_the_run_with_the_reason(story: Told) -> None:
    assert story.first.returncode != 0
    assert "DeadWorkerError" in story.first.stderr
    assert "a worker process of the simulation has died" in story.first.stderr
    assert story.rounds_at_death == list(range(1, DIES + 1))  # with that of the round it ended in


def test_second_start_goes_on_in_the_round_in_which_the_worker_died(story: Told) -> None:
    assert story.second.returncode == 0, story.second.stderr
    assert [record["round"] for record in story.history] == list(range(1, ROUNDS + 1))
    assert len(story.record(DIES)["delivered"]) == 2
    assert not story.record(DIES)["rejected"]


def test_run_ends_though_a_client_of_its_last_round_hangs(story: Told) -> None:
    assert story.record(ROUNDS)["rejected"]["1"].startswith("training: no reply")
    assert story.record(ROUNDS)["delivered"] == ["2"]
    assert story.last_model_to_end < 120  # the client would take 1000 s


def test_no_round_takes_longer_than_its_time_limits(story: Told) -> None:
    times = [model["time"] for model in story.models if model["round"] < DIES]
    longest = max(end - begin for begin, end in pairwise(times[1:]))
    assert longest < 2 * PATIENCE + 30
    assert all(record["seconds"]["training"] < PATIENCE + 10 for record in story.history)


def test_there_is_a_model_of_every_round(story: Told) -> None:
    assert {model["round"] for model in story.models} >= set(range(1, ROUNDS + 1))


SOAK_ROUNDS = int(os.environ.get("PNCS_RAY_ROUNDS", "12"))
SOAK_CLIENTS = 10


def outcome(folder: Path) -> tuple[list[Any], dict[str, bytes]]:
    """Return what must not depend on the engine."""
    kept = ("round", "asked", "answered", "chosen", "cooling", "delivered", "mean_similarity")
    with np.load(folder / "weights.npz", allow_pickle=False) as weights:
        bits = {name: weights[name].tobytes() for name in weights.files}
    return [{key: record[key] for key in kept} for record in read_history(folder)], bits


def test_long_run_with_faults_loses_no_round_keeps_its_memory_and_the_bits_of_one_process(
    tmp_path: Path,
) -> None:
    here, there = tmp_path / "here", tmp_path / "ray"
    settings: dict[str, Any] = {
        **deployed.SETTINGS,
        "rounds": SOAK_ROUNDS,
        "evaluate": 0.0,
        "options": json.dumps({"num_selected": 3, "seed": 4, "wait_timeout": 300}),
        "app": "faulty",
    }
    for folder in (here, there):
        folder.mkdir()
    deployed.run(
        InProcessGrid(faulty_app.make_app(), SOAK_CLIENTS), {**settings, "output": str(here)}
    )
    done = on_ray(SOAK_CLIENTS, {**settings, "output": str(there)})
    assert done.returncode == 0, done.stderr

    history = read_history(there)
    assert [record["round"] for record in history] == list(range(1, SOAK_ROUNDS + 1))
    rejected = [set(record["rejected"]) for record in history]
    assert sum(map(len, rejected)) >= SOAK_ROUNDS / 4
    assert rejected == [set(record["rejected"]) for record in read_history(here)]
    assert outcome(there) == outcome(here)
    megabytes = {int(n): mb for n, mb in json.loads(done.stdout.splitlines()[-1]).items()}
    growth = megabytes[SOAK_ROUNDS] - megabytes[max(1, SOAK_ROUNDS // 4)]
    print(f"the server process: {megabytes[SOAK_ROUNDS]:.0f} MB, {growth:.1f} MB more at the end")
    assert growth < 10 + 0.03 * SOAK_ROUNDS
