"""Starts runs on Ray in a process of their own, for the tests that compare or disturb them."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parent


def on_ray(
    clients: int, *runs: dict[str, Any], workers: int = 2
) -> subprocess.CompletedProcess[str]:
    """Run the settings one after the other, and see that nothing is left running."""
    script = TESTS / "apps" / "on_ray.py"
    return run_script(script, clients, workers, *map(json.dumps, runs), home=runs[0]["output"])


def run_script(
    script: Path, *arguments: object, home: str | Path
) -> subprocess.CompletedProcess[str]:
    """Run a script that starts Ray, and see that nothing is left running."""
    from pncs_flower.simulations.machine.processes import adopt_orphans, descendants
    from pncs_flower.simulations.machine.watchdog import is_alive

    adopt_orphans()
    before = descendants()
    done = subprocess.run(
        [sys.executable, str(script), *map(str, arguments)],
        cwd=home,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")]),
            "FLWR_HOME": str(home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_worker_niceness": "0",  # else whatever else the machine does comes first
        },
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
    )
    deadline = time.monotonic() + 30
    while any(is_alive(process) for process in descendants() if process not in before):
        assert time.monotonic() < deadline, f"processes are left running: {done.stderr}"
        time.sleep(0.1)
    return done
