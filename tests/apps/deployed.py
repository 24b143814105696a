"""The app of the deployment tests: any rule, as the run's settings say; clients fail on request.

Its server part runs in any engine, so that a deployment can be compared with a single process.
"""

import json
import os
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from apps import numpy_app
from pncs_flower import strategies
from pncs_flower.clients import SummaryMod
from pncs_flower.protocol import MARKER

SETTINGS: dict[str, str | int | float] = {
    "rule": "PNCS",
    "options": "{}",  # JSON
    "rounds": 3,
    "timeout": 120.0,
    "evaluate": 1.0,  # FedAvg's fraction_evaluate
    "output": "",
    "trouble": "",
}

server_app = ServerApp()


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    run(grid, context.run_config)


def run(
    grid: Grid,
    settings: Mapping[str, Any],
    on_round: Callable[[int, ArrayRecord], None] = lambda server_round, arrays: None,
) -> None:
    """Run a strategy; leave its history, when each model was there, and the last model."""
    output = Path(settings["output"])
    strategy = getattr(strategies, settings["rule"])(
        FedAvg(fraction_evaluate=float(settings["evaluate"])),
        history_path=output / "history.jsonl",
        **{"num_selected": 2, **json.loads(settings["options"])},
    )

    def look(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        finite = all(np.isfinite(array.numpy()).all() for array in arrays.values())
        with (output / "models.jsonl").open("a") as file:
            row = {"round": server_round, "finite": bool(finite), "time": time.time()}
            file.write(json.dumps(row) + "\n")
        on_round(server_round, arrays)
        return MetricRecord({"finite": int(finite)})

    result = strategy.start(
        grid,
        numpy_app.initial_arrays(),
        num_rounds=int(settings["rounds"]),
        timeout=float(settings["timeout"]),
        evaluate_fn=look,
    )
    metrics = {
        name: {number: dict(record) for number, record in by_round.items()}
        for name, by_round in vars(result).items()
        if name != "arrays"
    }
    (output / "metrics.json").write_text(json.dumps(metrics))
    np.savez(output / "weights.npz", **{n: a.numpy() for n, a in result.arrays.items()})


def trouble(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Cause the trouble that the run's settings ask for."""
    cause(str(context.run_config.get("trouble", "")), message, context)
    return call_next(message, context)


def cause(what_where: str, message: Message, context: Context) -> None:
    """Raise, hang for some seconds, or die.

    As in ``summarize/2/0/raise train/3/1/hang:30 train/4/2/die``: phase, round, client, and what
    it does.
    """
    marker = message.content.config_records.get(MARKER)
    if marker is None or "round" not in marker:
        return
    client = context.node_config["partition-id"]
    here = f"{marker['phase']}/{marker['round']}/{client}/"
    for entry in what_where.split():
        if entry.startswith(here):
            what, _, seconds = entry.removeprefix(here).partition(":")
            if what == "raise":
                raise OSError(f"no data in round {marker['round']}")
            if what == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(float(seconds))


def make_client_app() -> ClientApp:
    return numpy_app.make_app(
        trouble, SummaryMod(gradient=numpy_app.gradient, evaluate=numpy_app.evaluate)
    )


client_app = make_client_app()
