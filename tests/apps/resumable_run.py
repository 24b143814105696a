"""A run that a test kills and starts again: python resumable_run.py FOLDER [rounds].

Prints a digest of weights, choices and history when it comes to its end.
"""

import hashlib
import json
import logging
import sys
import time
from pathlib import Path

from flwr.app import ConfigRecord
from flwr.serverapp.strategy import FedAdam

from apps import numpy_app
from pncs_flower.clients import summary_mod
from pncs_flower.simulations.run.in_process import InProcessGrid
from pncs_flower.strategies import PNCS


class Decaying(FedAdam):
    """Changes the config that it is given, as Flower's tutorial does."""

    def configure_train(self, server_round, arrays, config, grid):
        config["lr"] = config["lr"] * 0.9
        time.sleep(0.02)  # so that a kill falls into any part of a round
        return super().configure_train(server_round, arrays, config, grid)


def run(folder: Path | None, rounds: int = 12) -> str:
    strategy = PNCS(
        Decaying(),
        num_selected=3,
        queue_length=4,
        sketch="coordinates:6",
        seed=8,
        checkpoint=folder,
        history_path=folder and folder / "history.jsonl",
    )

    result = strategy.start(
        InProcessGrid(numpy_app.make_app(summary_mod), 8),
        numpy_app.initial_arrays(),
        num_rounds=rounds,
        train_config=ConfigRecord({"lr": 0.5}),
        evaluate_fn=numpy_app.sum_of_weights,
    )
    history = [
        {name: value for name, value in record.to_dict().items() if name != "seconds"}
        for record in strategy.history
    ]
    for record in history:  # who introduces itself and who is asked ahead depends on the restarts
        del record["pre_round"]
        for phase in ("introduction", "pre-round unused"):
            record["bytes_down"].pop(phase, None)
            record["bytes_up"].pop(phase, None)
    metrics = [
        {number: dict(record) for number, record in by_round.items()}
        for by_round in (
            result.train_metrics_clientapp,
            result.evaluate_metrics_clientapp,
            result.evaluate_metrics_serverapp,
        )
    ]
    digest = hashlib.sha256(json.dumps([history, metrics]).encode())
    for array in result.arrays.values():
        digest.update(array.numpy().tobytes())
    if folder is not None:
        lines = (folder / "history.jsonl").read_text().splitlines()
        assert [json.loads(line)["round"] for line in lines] == list(range(1, rounds + 1))
    return digest.hexdigest()


if __name__ == "__main__":
    logging.getLogger("flwr").setLevel(logging.ERROR)
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    print("digest", run(target, *map(int, sys.argv[2:])))
