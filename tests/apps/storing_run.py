"""A run whose model depends on stored updates, killed by a test: python storing_run.py FOLDER.

Prints a digest of weights and store when it comes to its end.
"""

import hashlib
import logging
import sys
import time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord
from flwr.serverapp.strategy import FedAvg

from apps import numpy_app
from pncs_flower.clients import summary_mod
from pncs_flower.simulations.run.in_process import InProcessGrid
from pncs_flower.strategies import RoundRobin
from pncs_flower.strategies.combinations.store import UpdateStore, weighted_sum
from pncs_flower.strategies.kept_arrays import FOLDER

FORGOTTEN_AFTER = 5


class Storing(RoundRobin):
    """Moves the model by a tenth of the sum of what it has stored: the last five models."""

    def __init__(self, folder: Path | None) -> None:
        super().__init__(FedAvg(fraction_evaluate=0.0), checkpoint=folder, seed=3)
        self.store = UpdateStore(5, "float16", folder and folder / FOLDER)

    def aggregate_train(self, server_round, replies):
        time.sleep(0.02)  # so that a kill falls into any part of a round
        new, metrics = super().aggregate_train(server_round, replies)
        flat = np.concatenate([array.numpy().ravel() for array in new.values()])
        number = self.history[-1].round
        for client in self.history[-1].delivered:
            note = self.store.add(client, number, flat + int(client), np.full(3, number))
            self.history[-1].notes += [note] * bool(note)
        if number == FORGOTTEN_AFTER:
            self.store.forget(self.history[0].delivered[0])
        self.store.trim()
        if self.store.entries:
            flat = flat + 0.1 * weighted_sum(self.store.entries, [1.0] * len(self.store.entries))
        moved, start = ArrayRecord(), 0
        for name, array in new.items():
            values = flat[start : start + array.numpy().size]
            moved[name] = Array(values.reshape(array.shape).astype(np.float32))
            start += values.size
        return moved, metrics

    def state(self):
        return {**super().state(), "store": self.store.state()}

    def restore(self, state):
        super().restore(state)
        self.store.restore(state["store"])


def start(folder: Path | None, rounds: int) -> tuple[Storing, str]:
    strategy = Storing(folder)
    grid = InProcessGrid(numpy_app.make_app(summary_mod), 6)
    result = strategy.start(grid, numpy_app.initial_arrays(), num_rounds=rounds)
    digest = hashlib.sha256()
    for array in result.arrays.values():
        digest.update(array.numpy().tobytes())
    for entry in strategy.store.entries:
        about = entry.client, entry.round, entry.norm, entry.scale, entry.sketch.tobytes()
        digest.update(repr(about).encode() + entry.values.tobytes())
    return strategy, digest.hexdigest()


def run(folder: Path | None, rounds: int = 12) -> str:
    return start(folder, rounds)[1]


if __name__ == "__main__":
    logging.getLogger("flwr").setLevel(logging.ERROR)
    print("digest", run(Path(sys.argv[1])))
