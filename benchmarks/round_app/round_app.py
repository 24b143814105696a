"""The app that benchmarks/round.py times: clients do next to nothing, so messages are all there is.

The model has 41 thousand values; client k moves it a tenth of the way towards a target of its own.
"""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg, Strategy

from pncs_flower.clients import SummaryMod
from pncs_flower.strategies import PNCS, SelectionStrategy, timeouts

__all__ = ["STRATEGIES", "client_app", "serve", "server_app"]

SHAPES = {"linear.weight": (10, 4096), "linear.bias": (10,)}

STRATEGIES = ("fedavg", "fedavg-share", "pncs", "pncs-two", "pncs-own")
"""FedAvg as it comes, which trains all clients; FedAvg that trains as many as PNCS; PNCS with
summaries that ride along in the messages of the evaluation; in messages of their own; PNCS with
pre-rounds of their own. All evaluate on all clients."""

client_app = ClientApp(
    mods=[SummaryMod(evaluate=lambda message, context: client_app(message, context))]
)
server_app = ServerApp()


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """Take one step."""
    rng = np.random.default_rng(int(context.node_config["partition-id"]))
    model = message.content.array_records["arrays"]
    moved = {
        name: Array(w.numpy() + 0.1 * (rng.normal(size=w.shape).astype(np.float32) - w.numpy()))
        for name, w in model.items()
    }
    metrics = MetricRecord({"num-examples": 1})
    return Message(RecordDict({"arrays": ArrayRecord(moved), "metrics": metrics}), reply_to=message)


@client_app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Return a number."""
    metrics = MetricRecord({"num-examples": 1, "loss": 0.0})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """Serve on a SuperLink."""
    serve(grid, context.run_config)


def serve(grid: Grid, settings: Mapping[str, Any]) -> None:
    """Run a strategy, and write the seconds of each round but the first, and who was chosen."""
    strategy = _strategy(settings)
    ends: list[float] = []

    def note(server_round: int, arrays: ArrayRecord) -> None:
        ends.append(time.monotonic())

    initial = ArrayRecord({n: Array(np.zeros(s, np.float32)) for n, s in SHAPES.items()})
    rounds = int(settings["num-rounds"]) + 1
    strategy.start(grid, initial, num_rounds=rounds, evaluate_fn=note)
    chosen = (
        [record.chosen for record in strategy.history]
        if isinstance(strategy, SelectionStrategy)
        else []
    )
    seconds = np.diff(ends[1:]).tolist()  # without the first round, which waits for the clients
    text = json.dumps({"seconds": seconds, "chosen": chosen})
    Path(str(settings["output"])).write_text(text, encoding="utf-8")


def _strategy(settings: Mapping[str, Any]) -> Strategy:
    name, clients = settings["strategy"], int(settings["num-clients"])
    selected = int(settings["num-selected"])
    if name in ("fedavg", "fedavg-share"):
        share = 1.0 if name == "fedavg" else (selected + 0.5) / clients
        return FedAvg(fraction_train=share, min_available_nodes=clients)
    return PNCS(
        FedAvg(),
        num_selected=selected,
        queue_length=selected,
        sketch="count:256",
        p=2,
        ride_along=name != "pncs-own",
        # With less time for summaries than for evaluations, they are not in one message.
        summary_timeout=timeouts.TRAINING - (name == "pncs-two"),
    )
