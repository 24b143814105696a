"""A run whose model depends on stored updates, killed by a test: python storing_run.py FOLDER.

Prints a digest of weights, choices and store when it comes to its end.
"""

import hashlib
import logging
import sys
import time
from pathlib import Path

from flwr.app import Context, Message
from flwr.serverapp.strategy import FedAvg

from apps import numpy_app
from pncs_flower.clients import summary_mod
from pncs_flower.simulations.run.in_process import InProcessGrid
from pncs_flower.strategies import SketchedMean
from pncs_flower.strategies.combinations.store import StoredUpdate
from pncs_flower.strategies.selection import SelectionStrategy

STORE = "sketched-mean:store=5,dtype=float16"
FORGOTTEN_AFTER = 5  # the first client that delivered in the round before


def train(message: Message, context: Context) -> Message:
    reply = numpy_app.train(message, context)
    reply.content["metrics"]["weight"] = 1.0 / reply.content["metrics"]["num-examples"]
    return reply


def start(
    folder: Path | None,
    rounds: int,
    kind: type = SketchedMean,
    combine: str = STORE,
    weighted_by: str = "num-examples",
    **options,
) -> tuple[SelectionStrategy, str]:
    base = FedAvg(fraction_evaluate=0.0, weighted_by_key=weighted_by)
    strategy = kind(base, combine=combine, checkpoint=folder, seed=3, **options)

    def between_rounds(number, arrays):
        time.sleep(0.02)  # so that a kill falls into any part of a round
        if number == FORGOTTEN_AFTER:
            strategy.forget(strategy.history[number - 2].delivered[0])

    grid = InProcessGrid(numpy_app.make_app(summary_mod, train=train), 6)
    result = strategy.start(
        grid, numpy_app.initial_arrays(), num_rounds=rounds, evaluate_fn=between_rounds
    )
    digest = hashlib.sha256(repr([record.delivered for record in strategy.history]).encode())
    for array in result.arrays.values():
        digest.update(array.numpy().tobytes())
    for entry in stored(strategy):
        sketch = b"" if entry.sketch is None else entry.sketch.tobytes()
        about = entry.client, entry.round, entry.norm, entry.scale, sketch
        digest.update(repr(about).encode() + entry.values.tobytes())
    return strategy, digest.hexdigest()


def stored(strategy: SelectionStrategy) -> list[StoredUpdate]:
    return strategy._combiner.combination._updates.entries


def run(folder: Path | None, rounds: int = 12) -> str:
    return start(folder, rounds)[1]


if __name__ == "__main__":
    logging.getLogger("flwr").setLevel(logging.ERROR)
    print("digest", run(Path(sys.argv[1])))
