"""What a message costs in Flower's simulation on Ray, by the number of clients.

Each client gets one message with a model of 41 thousand values and answers with nothing: what is
left is what Flower and Ray take for themselves, and so the least that a round takes. The exchange
is made by Flower's own grid, and by that which the library puts around it.

Examples
--------
python benchmarks/ray_limit.py
python benchmarks/ray_limit.py --clients 10 100
"""

import argparse
import json
import logging
import os
import subprocess
import sys
import time

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


def serve(grid: Grid, clients: int, repeats: int) -> None:
    """Time exchanges by either grid in turn, and print the medians as JSON."""
    while len(nodes := list(grid.get_node_ids())) < clients:
        time.sleep(0.1)
    model = RecordDict({"arrays": ArrayRecord({"w": Array(np.zeros(VALUES, np.float32))})})
    times: dict[str, list[float]] = {"flower": [], "library": []}
    for number in range(repeats + 1):
        for name, one in (("flower", grid), ("library", polled(grid))):
            messages = [Message(model, node, "train") for node in nodes]
            start = time.perf_counter()
            replies = list(one.send_and_receive(messages))
            if len(replies) != len(nodes) or any(reply.has_error() for reply in replies):
                raise RuntimeError(f"{len(nodes)} clients, {len(replies)} answers")
            if number:  # the first starts the workers
                times[name].append(time.perf_counter() - start)
    print(json.dumps({name: float(np.median(values)) for name, values in times.items()}))


def simulate(clients: int, repeats: int) -> None:
    """Run a simulation that prints its times."""
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
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        simulate(options.clients[0], options.repeats)
        return
    print(machine())
    print(f"{'clients':>8} {'Flower s':>9} {'ms each':>8} {'library s':>10} {'ms each':>8}")
    repeats = f"--repeats={options.repeats}"
    for clients in options.clients:
        # A simulation cannot be started twice in a process.
        done = subprocess.run(
            [sys.executable, __file__, "--worker", f"--clients={clients}", repeats],
            env={**os.environ, "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        seconds = json.loads(done.stdout.splitlines()[-1])
        row = [f"{seconds[name]:.2f} {seconds[name] / clients * 1e3:.1f}" for name in seconds]
        (flower, each), (library, own) = (text.split() for text in row)
        print(f"{clients:>8} {flower:>9} {each:>8} {library:>10} {own:>8}", flush=True)


if __name__ == "__main__":
    main()
