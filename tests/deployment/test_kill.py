"""The server app is killed at random moments; run again, it ends as if nothing had happened."""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from apps import deployed
from deployment.conftest import NUM_NODES, Deployed, outcome, read_history

from pncs_flower.simulations.run.in_process import InProcessGrid

KILLS = int(os.environ.get("PNCS_SUPERLINK_KILLS", "1"))
ROUNDS = 3

pytestmark = [
    pytest.mark.superlink,
    pytest.mark.minutes,
    pytest.mark.timeout(900 * (1 + KILLS)),
    pytest.mark.skipif(sys.platform != "linux", reason="the server app is found in /proc"),
]


def settings(checkpoint: Path | None) -> dict[str, Any]:
    options = {"queue_length": 2, "seed": 7, "sketch": "coordinates:6"}
    if checkpoint is not None:
        options["checkpoint"] = str(checkpoint)
    return {"rounds": ROUNDS, "options": json.dumps(options)}


def comparable(output: Path) -> dict[str, Any]:
    """Who introduces itself and who is asked ahead depends on the restarts, and nothing else."""
    result = dict(outcome(output))
    for record in result["history"]:
        del record["pre_round"]
        for bytes_of_phase in (record["bytes_down"], record["bytes_up"]):
            bytes_of_phase.pop("introduction", None)
            bytes_of_phase.pop("pre-round unused", None)
    return result


def test_killed_and_run_again_it_ends_with_the_same_bits(shared: Deployed, tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    whole.mkdir()
    grid = InProcessGrid(deployed.make_client_app(), NUM_NODES)
    deployed.run(grid, {**deployed.SETTINGS, **settings(None), "output": str(whole)})

    moments, kills, attempt = random.Random(KILLS), 0, 0
    while kills < KILLS:
        attempt += 1
        checkpoint = tmp_path / f"checkpoint-{attempt}"
        while True:
            run, output = shared.submit(f"killed-{attempt}", **settings(checkpoint))
            if kills < KILLS and kill(shared, run.stream, output, moments):
                kills += 1
                run.stream.kill()
                continue
            status, details = shared.federation.wait(run)
            assert status == "finished:completed", f"{details}\n{run.log.read_text()}"
            break
        resumed, expected = comparable(output), comparable(whole)
        for record, expected_record in zip(resumed["history"], expected["history"], strict=True):
            assert record == expected_record
        assert resumed == expected


def kill(shared: Deployed, stream: Any, output: Path, moments: random.Random) -> bool:
    """Kill the server app at some moment after it has finished a round; False if it was done."""
    done = len(read_history(output))
    start = time.monotonic()
    # At the start of a run that goes on, the file holds the rounds before.
    while len(read_history(output)) <= done:
        if stream.poll() is not None:
            return False
        time.sleep(0.1)
    time.sleep(moments.uniform(0, (time.monotonic() - start) / 2))
    pids = shared.federation.server_app()
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    return bool(pids)
