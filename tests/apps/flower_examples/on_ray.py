"""Examples with the two lines on Ray, after one start: python on_ray.py CLIENTS FOLDER NAME ...

A name may come with settings, as JSON: ``NAME={"lr": 0.1}``. Prints, as JSON, who was chosen, left
out and delivered in each round of each example; leaves the models in the folder.
"""

import importlib
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import Strategy
from flwr.simulation import run_simulation

from apps.flower_examples import Config
from pncs_flower.clients import summary_mod
from pncs_flower.simulations.machine.processes import stop_hung_workers
from pncs_flower.strategies import PNCS, RoundRobin
from pncs_flower.strategies.grids.polling import polled
from pncs_flower.strategies.grids.view import GridWrapper

TAG = "example"


class Tagged(GridWrapper):
    """Says in each message which example it belongs to, and the run's settings.

    One start of Ray has one app for all, and no settings.
    """

    def __init__(self, grid: Grid, name: str, config: Config) -> None:
        super().__init__(grid)
        self._tag = ConfigRecord({"name": name, "config": json.dumps(config)})

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return super().push_messages(self._tagged(messages))

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        return super().send_and_receive(self._tagged(messages), timeout=timeout)

    def _tagged(self, messages: Iterable[Message]) -> list[Message]:
        tagged = list(messages)
        for message in tagged:
            message.content = RecordDict({**message.content, TAG: self._tag})
        return tagged


class AnyExample(ClientApp):
    """The app of the example that the message belongs to."""

    def __call__(self, message: Message, context: Context) -> Message:
        tag = message.content[TAG]
        message.content = RecordDict({n: r for n, r in message.content.items() if n != TAG})
        example = importlib.import_module(f"apps.flower_examples.{tag['name']}")
        own = Context(
            context.run_id,
            context.node_id,
            context.node_config,
            context.state,
            json.loads(tag["config"]),
        )
        reply = example.make_client_app(summary_mod)(message, own)
        context.state = own.state
        return reply


def run(grid: Grid, name: str, changed: Config, folder: Path) -> dict[str, Any]:
    example = importlib.import_module(f"apps.flower_examples.{name}")
    config = {**example.RUN_CONFIG, **changed}
    rule = RoundRobin if name == "quickstart_xgboost" else PNCS
    made = []

    def select(base: Strategy) -> Strategy:
        made.append(rule(base, num_selected=2))
        return made[0]

    main = getattr(example, "main_with_selection", example.main)
    result = main(Tagged(polled(grid), name, config), config, select)
    np.savez(folder / f"{name}.npz", **{n: a.numpy() for n, a in result.arrays.items()})
    history = made[0].history
    return {
        field: [getattr(record, field) for record in history]
        for field in ("chosen", "delivered", "rejected", "notes")
    }


def main(clients: int, folder: Path, examples: list[str]) -> None:
    server_app = ServerApp()

    @server_app.main()
    def serve(grid: Grid, context: Context) -> None:
        try:
            for entry in examples:
                name, _, changed = entry.partition("=")
                told = run(grid, name, json.loads(changed or "{}"), folder)
                print(json.dumps({"example": name, **told}), flush=True)
        finally:
            stop_hung_workers(grace=2.0)

    run_simulation(
        server_app,
        AnyExample(),
        clients,
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {"num_cpus": 2, "log_to_driver": False},
        },
    )


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
