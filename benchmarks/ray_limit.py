"""What a message costs in Flower's simulation on Ray, by the number of clients.

Each client gets one message with a model of 41 thousand values and answers with nothing: what is
left is what Flower and Ray take for themselves, and so the least that a round takes. The exchange
is made by Flower's own grid, and by that which the library puts around it. Beside the wall time is
the CPU time of the server's process.

With ``--without-ray``, the clients are called in Ray's place, in the same process: what is left
then is Flower's simulation engine.

Examples
--------
python benchmarks/ray_limit.py
python benchmarks/ray_limit.py --clients 100 1000 --without-ray
"""

import argparse
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation
from measure import machine

from pncs_flower.strategies.grids.polling import polled

VALUES = (10, 4097)

client_app = ClientApp()


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """Answer with nothing."""
    return Message(RecordDict(), reply_to=message)


class NoRay:
    """In place of Flower's backend: calls the clients, two at once."""

    num_workers = 2

    def __init__(self, config: object) -> None:
        pass

    def build(self, app_fn: Callable[[], ClientApp]) -> None:
        self._app = app_fn()

    def process_message(self, message: Message, context: Context) -> tuple[Message, Context]:
        return self._app(message, context), context

    def terminate(self) -> None:
        pass


def serve(grid: Grid, clients: int, repeats: int) -> None:
    """Time exchanges by either grid in turn, and print the medians as JSON."""
    while len(nodes := list(grid.get_node_ids())) < clients:
        time.sleep(0.1)
    model = RecordDict({"arrays": ArrayRecord({"w": Array(np.zeros(VALUES, np.float32))})})
    results: dict[str, list[float]] = {}
    for name, wrap in (("flower", lambda grid: grid), ("library", polled)):
        times: list[tuple[float, float]] = []
        for _ in range(repeats + 1):
            messages = [Message(model, node, "train") for node in nodes]
            start = time.perf_counter(), time.process_time()
            replies = list(wrap(grid).send_and_receive(messages))
            if len(replies) != len(nodes) or any(reply.has_error() for reply in replies):
                raise RuntimeError(f"{len(nodes)} clients, {len(replies)} answers")
            times.append((time.perf_counter() - start[0], time.process_time() - start[1]))
        results[name] = np.median(times[1:], axis=0).tolist()  # the first starts the workers
    print(json.dumps(results))


def simulate(clients: int, repeats: int, without_ray: bool) -> None:
    """Run a simulation that prints its times."""
    if without_ray:
        backend_module: Any = ModuleType("flwr.server.superlink.fleet.vce.backend.raybackend")
        backend_module.RayBackend = NoRay
        sys.modules[backend_module.__name__] = backend_module
    logging.getLogger("flwr").setLevel(logging.ERROR)
    app = ServerApp()
    app.main()(lambda grid, context: serve(grid, clients, repeats))
    backend = {"client_resources": {"num_cpus": 1}, "init_args": {"log_to_driver": False}}
    run_simulation(app, client_app, clients, backend_config=backend)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, nargs="+", default=[10, 100, 300, 1000])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--without-ray", action="store_true")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        simulate(options.clients[0], options.repeats, options.without_ray)
        return
    print(machine())
    print(
        f"{'':>8} {'Flower':>8} {'ms a':>8} {'CPU ms':>8} {'library':>8} {'ms a':>8} {'CPU ms':>8}"
    )
    print(f"{'clients':>8} {'s':>8} {'message':>8} {'each':>8} {'s':>8} {'message':>8} {'each':>8}")
    repeats = f"--repeats={options.repeats}"
    how = ["--without-ray"] if options.without_ray else []
    for clients in options.clients:
        # A simulation cannot be started twice in a process.
        done = subprocess.run(
            [sys.executable, __file__, "--worker", f"--clients={clients}", repeats, *how],
            env={**os.environ, "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        seconds = json.loads(done.stdout.splitlines()[-1])
        row = "".join(
            f" {wall:>8.2f} {wall / clients * 1e3:>8.2f} {cpu / clients * 1e3:>8.2f}"
            for wall, cpu in seconds.values()
        )
        print(f"{clients:>8}{row}", flush=True)


if __name__ == "__main__":
    main()
