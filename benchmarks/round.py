"""Seconds of a PNCS round beside a FedAvg round that evaluates on the clients.

Clients do next to nothing, so the exchanges are timed. `fedavg` is FedAvg as it comes: all clients
train, all evaluate. `fedavg-share` trains as many as PNCS does. `pncs` asks for summaries in the
messages that evaluate (`SummaryMod(evaluate=...)`), `pncs-two` in messages of their own at the same
time, as `summary_mod` has it, and `pncs-own` in an exchange of its own. Each is run once, for one
round that is not timed and those that are; the figure is the median, and the ratio is to `fedavg`.

On a SuperLink, it and three SuperNodes are processes of their own on this machine, and so is the
client app for each message; on Ray, clients share the cores.

Examples
--------
python benchmarks/round.py
python benchmarks/round.py --rounds 5 --engines ray-10
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from measure import machine

HERE = Path(__file__).resolve().parent
APP = HERE / "round_app"
sys.path[:0] = [str(APP), str(HERE.parent / "examples" / "deployment")]

from federation import Federation  # noqa: E402
from round_app import STRATEGIES  # noqa: E402

# Clients in all, and those that train.
ENGINES = {"superlink-3": (3, 2), "ray-10": (10, 2), "ray-100": (100, 10)}

SIMULATE = """
import json, logging, sys
from flwr.simulation import run_simulation
from flwr.serverapp import ServerApp
from round_app import client_app, serve
settings = json.loads(sys.argv[1])
app = ServerApp()
app.main()(lambda grid, context: serve(grid, settings))
logging.getLogger("flwr").setLevel(logging.ERROR)
run_simulation(
    app, client_app, settings["num-clients"],
    backend_config={"client_resources": {"num_cpus": 1}, "init_args": {"log_to_driver": False}},
)
"""


def on_superlink(runs: list[dict[str, Any]], folder: Path) -> None:
    """Run all on one SuperLink, one after the other."""
    with Federation(folder / "federation") as federation:
        nodes = [
            federation.start_supernode(f"node-{i}", {"partition-id": i, "num-partitions": 3})
            for i in range(3)
        ]
        federation.wait_for(nodes)
        for settings in runs:
            submitted = federation.submit(APP, settings)
            status, details = federation.wait(submitted, timeout=7200)
            if status != "finished:completed":
                raise RuntimeError(f"{settings['strategy']}: {status} {details}")


def on_ray(runs: list[dict[str, Any]]) -> None:
    """Run each in a process of its own, with a Ray of its own."""
    environment = {**os.environ, "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    for settings in runs:
        subprocess.run(
            [sys.executable, "-c", SIMULATE, json.dumps(settings)],
            cwd=APP,
            env=environment,
            check=True,
        )


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=20, help="rounds that are timed")
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    parser.add_argument("--strategies", nargs="+", choices=STRATEGIES, default=list(STRATEGIES))
    options = parser.parse_args(arguments)
    print(machine(), flush=True)
    print(f"{'engine':<12} {'strategy':<13} {'median s':>9} {'ratio':>6}  choices", flush=True)
    for engine in options.engines:
        clients, selected = ENGINES[engine]
        with tempfile.TemporaryDirectory(prefix="pncs-") as name:
            folder = Path(name)
            runs = [
                {
                    "strategy": strategy,
                    "num-clients": clients,
                    "num-selected": selected,
                    "num-rounds": options.rounds,
                    "output": str(folder / f"{strategy}.json"),
                }
                for strategy in options.strategies
            ]
            if engine.startswith("superlink"):
                on_superlink(runs, folder)
            else:
                on_ray(runs)
            print_rows(
                engine, {r["strategy"]: json.loads(Path(r["output"]).read_text()) for r in runs}
            )


def print_rows(engine: str, results: dict[str, Any]) -> None:
    base = results.get("fedavg")
    for strategy, result in results.items():
        median = float(np.median(result["seconds"]))
        ratio = f"{median / float(np.median(base['seconds'])):.2f}" if base else "-"
        choices = "-"
        if result["chosen"] and "pncs-own" in results:
            same = result["chosen"] == results["pncs-own"]["chosen"]
            choices = "those of pncs-own" if same else "NOT those of pncs-own"
        print(f"{engine:<12} {strategy:<13} {median:>9.3f} {ratio:>6}  {choices}", flush=True)


if __name__ == "__main__":
    main()
