"""Ray's logical GPUs: the share is granted, and the clients compute on the CPU if told to."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs pncs-flower[simulation]")
pytest.importorskip("ray", reason="needs pncs-flower[simulation]")

TESTS = Path(__file__).parents[1]


@pytest.mark.ray
@pytest.mark.minutes
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a real GPU")
def test_a_share_of_a_gpu_that_is_only_counted_is_granted_and_never_computed_on():
    done = subprocess.run(
        [sys.executable, str(TESTS / "apps" / "logical_gpu_run.py")],
        cwd=TESTS,
        env={
            **os.environ,
            "PYTHONPATH": str(TESTS),
            "FLWR_TELEMETRY_ENABLED": "0",
            "RAY_USAGE_STATS_ENABLED": "0",
        },
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    # Means over the clients, each of which was given one.
    given = json.loads(done.stdout.strip().splitlines()[-1])
    assert given == pytest.approx({"gpus": 1, "on-cpu-if-wanted": 1, "refused-else": 1})
