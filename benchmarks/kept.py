"""Memory that a simulation takes for the updates that its clients keep until the choice is made.

The most at once of all processes together, for FedAvg that trains as many as are chosen and for
PNCS, which asks all, with a small sketch and with the default one, of 5% of the model for each
client: private and shared memory, and files in memory; not the system's cache of files on disk,
which gives way. Clients do next to nothing. FedAvg has more rounds, so that as many clients train,
and each run is looked at as often. Each number is a run of its own.

Examples
--------
python benchmarks/kept.py
python benchmarks/kept.py --clients 50 --engines in-process
python benchmarks/kept.py --rounds 2 --engines ray
"""

import argparse
import json
import logging
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg, Strategy
from measure import machine

from pncs_flower.clients import summary_mod
from pncs_flower.simulations import InProcessGrid
from pncs_flower.strategies import PNCS
from pncs_flower.strategies.rules.pncs import SMALL

ENGINES = {"in-process": 1, "workers-2": 2, "ray": 0}
SKETCHES = {"PNCS": "coordinates:1000", "default": SMALL}
CHOSEN = 10

client_app = ClientApp(mods=[summary_mod])


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """Move the model a little, each client in a direction of its own."""
    client = int(context.node_config["partition-id"])
    weights = message.content.array_records["arrays"]["w"].numpy()
    step = np.random.default_rng(client).random(weights.shape, np.float32)
    content = {
        "arrays": ArrayRecord({"w": Array(weights - step)}),
        "metrics": MetricRecord({"num-examples": 1}),
    }
    return Message(RecordDict(content), reply_to=message)


@client_app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Return a number."""
    metrics = MetricRecord({"num-examples": 1, "loss": 0.0})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


def serve(grid: Grid, settings: dict[str, Any]) -> None:
    """Run a strategy."""
    clients, rounds = settings["clients"], settings["rounds"]
    share = (CHOSEN + 0.5) / clients
    strategy: Strategy = FedAvg(share, share, min_available_nodes=clients)
    if sketch := SKETCHES.get(settings["strategy"]):
        strategy = PNCS(FedAvg(), num_selected=CHOSEN, queue_length=4, sketch=sketch)
    else:
        rounds *= clients // CHOSEN
    model = ArrayRecord({"w": Array(np.zeros((2, settings["values"] // 2), np.float32))})
    strategy.start(grid, model, num_rounds=rounds, timeout=3600)


def simulate(settings: dict[str, Any]) -> None:
    """Run a simulation in this process."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    clients, workers = settings["clients"], ENGINES[settings["engine"]]
    if workers:
        with InProcessGrid(client_app, clients, workers=workers) as grid:
            serve(grid, settings)
        return
    from flwr.simulation import run_simulation

    app = ServerApp()
    app.main()(lambda grid, context: serve(grid, settings))
    resources = {"client_resources": {"num_cpus": 1}, "init_args": {"log_to_driver": False}}
    run_simulation(app, client_app, clients, backend_config=resources)


def most_megabytes(settings: dict[str, Any]) -> float:
    """Run a simulation in processes of its own, and return the most memory that they took."""
    run = subprocess.Popen(
        [sys.executable, __file__, "--worker", json.dumps(settings)],
        env={**os.environ, "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"},
    )
    most = 0.0
    while run.poll() is None:
        most = max(most, _megabytes(run.pid))
        time.sleep(0.2)
    if run.returncode:
        raise RuntimeError(f"{settings}: exit code {run.returncode}")
    return most


def _megabytes(pid: int) -> float:
    """Return the memory of a process and all that it has started, in MB."""
    size, files = 0, dict[int, int]()
    waiting = [pid]
    while waiting:
        folder = Path(f"/proc/{waiting.pop()}")
        try:
            for line in (folder / "smaps_rollup").read_text(encoding="ascii").splitlines():
                if line.startswith(("Pss_Anon:", "Pss_Shmem:")):
                    size += 1024 * int(line.split()[1])
            for descriptor in (folder / "fd").iterdir():
                if os.readlink(descriptor).startswith("/memfd"):
                    about = descriptor.stat()
                    files[about.st_ino] = 512 * about.st_blocks
            for task in (folder / "task").iterdir():
                waiting += map(int, (task / "children").read_text(encoding="ascii").split())
        except OSError:
            continue  # it has ended meanwhile
    return (size + sum(files.values())) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--values", type=int, default=2_000_000, help="of the model, 4 bytes each")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    parser.add_argument("--worker", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        simulate(options.worker)
        return
    print(machine())
    columns = "".join(f"{name + ' MB':>12} {'ratio':>6}" for name in SKETCHES)
    print(f"{'engine':<12} {'FedAvg MB':>10}{columns}", flush=True)
    for engine in options.engines:
        common = {key: vars(options)[key] for key in ("clients", "values", "rounds")}
        fedavg, *others = (
            most_megabytes({"engine": engine, "strategy": strategy, **common})
            for strategy in ("FedAvg", *SKETCHES)
        )
        found = "".join(f"{other:>12.0f} {other / fedavg:>6.2f}" for other in others)
        print(f"{engine:<12} {fedavg:>10.0f}{found}", flush=True)


if __name__ == "__main__":
    main()
