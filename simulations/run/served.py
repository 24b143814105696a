"""Whom a run serves: who takes part, and how good the model is for each client's labels."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pncs_flower.fairness import Participation, accuracy_by_client, worst_tenth
from pncs_flower.strategies import RoundRecord

from ..config import Agreeing, Config
from ..task import load_inputs

KEYS = (
    *("num-clients", "gini", "jain", "never-chosen", "never-delivered", "longest-wait"),
    *("mean-client-accuracy", "client-accuracy-variance", "worst-tenth-accuracy"),
    "accuracy-by-class",
)
"""What each round's row says of it, and the summary, which has the last round's."""


class Served:
    """Takes note, round by round, of all clients that the examples are divided among."""

    # A turn is an update that is in the model: one that came too late, or not at all, has served
    # its client nothing. Only "never-chosen" counts choices.

    def __init__(self, config: Config) -> None:
        self._config = config
        self._num_clients = 0
        self._met: list[str] = []  # one list for all rounds, while they stay the same
        self._chosen, self._delivered = Participation(), Participation()

    def after(
        self, history: Sequence[RoundRecord], by_class: Sequence[float | None], num_clients: int
    ) -> dict[str, Any]:
        """Return what is noted of the last round: turns up to it, and accuracies after it."""
        chosen, delivered = self._chosen, self._delivered
        if num_clients != self._num_clients:
            self._num_clients = num_clients
            for turns in (chosen, delivered):
                turns.meet(map(str, range(num_clients)))
        for record in history[chosen.rounds :]:  # of a run that was taken up, more than one
            if record.clients is not self._met:
                self._met = record.clients
                chosen.meet(self._met)
                delivered.meet(self._met)
            chosen.add(record.chosen)
            delivered.add(record.delivered)
        of_clients = self._of_clients(by_class, num_clients)
        known = of_clients[~np.isnan(of_clients)]
        values = (
            *(num_clients, delivered.gini, delivered.jain, chosen.never, delivered.never),
            delivered.longest_wait,
            float(known.mean()) if len(known) else None,
            float(known.var()) if len(known) else None,
            worst_tenth(known),
            list(by_class),
        )
        return dict(zip(KEYS, values, strict=True))

    def summary(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return the same of a run, from its last round; nothing of one that did not note it."""
        if "accuracy-by-class" not in row:
            return {}
        by_client = self._of_clients(row["accuracy-by-class"], row["num-clients"])
        return {
            **{key: row[key] for key in KEYS},
            "accuracy-by-client": {
                str(client): None if np.isnan(accuracy) else accuracy
                for client, accuracy in enumerate(by_client.tolist())
            },
        }

    def _of_clients(
        self, by_class: Sequence[float | None], num_clients: int
    ) -> NDArray[np.float64]:
        if not by_class:  # labels are numbers
            return np.full(num_clients, np.nan)
        labels = _labels(self._config.of_parts(), num_clients)
        return accuracy_by_client(labels, np.array(by_class, dtype=np.float64))


# One for all runs that differ in their rule, which follow each other in a sweep's process.
@lru_cache(maxsize=1)
def _labels(agreeing: Agreeing, num_clients: int) -> NDArray[np.int64]:
    """Return how many examples of each class the clients hold, shape (clients, classes)."""
    inputs = load_inputs(agreeing.config)
    try:
        parts = inputs.divide(agreeing.config, num_clients)
    except ValueError:  # most clients are told a number that cannot be, and say so themselves
        parts = []
    counts = [
        np.bincount(inputs.train_labels[part], minlength=inputs.num_classes) for part in parts
    ]
    return np.array(counts, dtype=np.int64).reshape(-1, inputs.num_classes)
