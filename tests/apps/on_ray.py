"""Runs on Ray, in a process of their own: python on_ray.py CLIENTS WORKERS SETTINGS ...

The settings of a run are those of `deployed`, in JSON, and ``"app"``, the clients' app: faulty, or
the product's own with ``"config"``, its settings. One start of Ray serves all runs, which come one
after the other. Prints how many megabytes the process held after each round of the last.
"""

import json
import os
import random
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, Context, Message
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from apps import deployed, faulty_app, numpy_app
from pncs_flower.clients import SummaryMod
from pncs_flower.simulations.machine.processes import stop_hung_workers
from pncs_flower.strategies.grids.polling import polled
from pncs_flower.strategies.grids.view import GridWrapper


class Shuffled(GridWrapper):
    """A grid whose replies come in any order."""

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        replies = list(super().send_and_receive(messages, timeout=timeout))
        random.shuffle(replies)
        return replies


class Configured(ClientApp):
    """The product's app with settings of its own: in a simulation without a file there are none."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        self._config = config

    def __call__(self, message: Message, context: Context) -> Message:
        from pncs_flower.simulations.client_app import app

        return app(message, replace(context, run_config=self._config))


def make_app(settings: dict[str, Any]) -> ClientApp:
    """Return clients that fail at random, or one that has a loss and the trouble asked for."""
    if settings.get("app") == "faulty":
        return faulty_app.make_app()
    if "config" in settings:
        return Configured(settings["config"])

    def trouble(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        deployed.cause(settings["trouble"], message, context)
        return call_next(message, context)

    def with_loss(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        slope = numpy_app.gradient(message, context)
        reply = call_next(message, context)
        loss = sum(float((a.numpy() ** 2).sum()) for a in slope.values()) / 2
        reply.content.metric_records["metrics"]["train-loss"] = loss
        return reply

    return numpy_app.make_app(trouble, SummaryMod(gradient=numpy_app.gradient), with_loss)


def resident_megabytes() -> float:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def run(grid: Grid, settings: dict[str, Any], measure: Callable[[int, ArrayRecord], None]) -> None:
    if "config" not in settings:
        deployed.run(grid, settings, measure)
        return
    from pncs_flower.simulations.config import Config
    from pncs_flower.simulations.run.training import train

    config = Config.from_run_config(settings["config"])
    train(grid, config, Path(settings["output"]), lambda row: None)


def simulate(clients: int, workers: int, runs: list[dict[str, Any]]) -> None:
    server_app = ServerApp()
    memory: dict[int, float] = {}

    def measure(server_round: int, arrays: ArrayRecord) -> None:
        memory[server_round] = resident_megabytes()

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        try:
            for settings in runs:
                run(Shuffled(polled(grid)), settings, measure)
        finally:
            stop_hung_workers(grace=2.0)

    run_simulation(
        server_app,
        make_app(runs[0]),
        clients,
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {"num_cpus": workers, "log_to_driver": False},
        },
    )
    print(json.dumps(memory))


if __name__ == "__main__":
    runs = [{**deployed.SETTINGS, **json.loads(settings)} for settings in sys.argv[3:]]
    simulate(int(sys.argv[1]), int(sys.argv[2]), runs)
