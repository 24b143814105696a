"""A run on Ray in a process of its own: python on_ray.py CLIENTS SETTINGS, with settings in JSON.

The settings are those of `deployed`, and ``"faults"``: whether clients fail at random.
"""

import json
import os
import sys
from typing import Any

from flwr.app import ArrayRecord, Context, Message
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from apps import deployed, faulty_app, numpy_app
from pncs_flower.clients import SummaryMod
from pncs_flower.simulations.hung_workers import stop_hung_workers

WORKERS = 2


def troubled_app(what_where: str) -> ClientApp:
    def trouble(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        deployed.cause(what_where, message, context)
        return call_next(message, context)

    return numpy_app.make_app(trouble, SummaryMod(gradient=numpy_app.gradient))


def resident_megabytes() -> float:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def simulate(clients: int, settings: dict[str, Any]) -> None:
    server_app = ServerApp()
    memory: dict[int, float] = {}

    def measure(server_round: int, arrays: ArrayRecord) -> None:
        memory[server_round] = resident_megabytes()

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        try:
            deployed.run(grid, settings, measure)
        finally:
            stop_hung_workers(grace=2.0)

    run_simulation(
        server_app,
        faulty_app.make_app() if settings["faults"] else troubled_app(settings["trouble"]),
        clients,
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {"num_cpus": WORKERS, "log_to_driver": False},
        },
    )
    print(json.dumps(memory))


if __name__ == "__main__":
    simulate(int(sys.argv[1]), {**deployed.SETTINGS, "faults": False, **json.loads(sys.argv[2])})
