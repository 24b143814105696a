"""What rules read from the clients' reports: losses and sizes; and drawing clients by weight."""

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from pncs_flower.protocol import NUM_EXAMPLES, client_order

from .errors import SelectionError
from .rule import Metrics, Round

_TELLING = 3  # the round from which even single clients tell that an app reports no such metric


def reported(
    delivered: Mapping[str, Metrics], key: str, option: str, now: Round, known: bool
) -> dict[str, float]:
    """Return a metric of each client that reported it, spelled with ``-`` or ``_``."""
    # SelectionError if nobody ever did, and several updates arrived or it is the third round: one
    # client of another make must not end the run.
    # Flower's examples report `train_loss`, while its own keys are like `num-examples`.
    spellings = (key, key.replace("-", "_"), key.replace("_", "-"))
    found = {
        client: next(metrics[name] for name in spellings if name in metrics)
        for client, metrics in delivered.items()
        if any(name in metrics for name in spellings)
    }
    telling = len(delivered) > 1 or now.number >= _TELLING
    if delivered and not found and not known and telling:
        client, metrics = next(iter(delivered.items()))
        raise SelectionError(
            f"no client reported the metric {key!r}; client {client} reported "
            f"{', '.join(metrics) or 'none'}. Return it from the app's train function, or name "
            f"another one by {option}"
        )
    return found


def sizes(
    clients: Sequence[str], now: Round, delivered: Mapping[str, Metrics] | None = None
) -> np.ndarray:
    """Return the clients' numbers of examples; the mean of the known, or 1, where nobody knows."""
    # What came with this round's updates counts for more than what was told before.
    known = {client: now.num_examples[client] for client in clients if client in now.num_examples}
    for client in clients:
        size = (delivered or {}).get(client, {}).get(NUM_EXAMPLES, 0)
        if size > 0:
            known[client] = size
    mean = float(np.mean(list(known.values()))) if known else 1.0
    return np.array([known.get(client, mean) for client in clients], dtype=np.float64)


def draw(log_weights: Mapping[str, float], count: int, rng: np.random.Generator) -> tuple[str, ...]:
    """Draw clients one after the other without replacement, by weight, whatever their order."""
    # The order of log weights plus Gumbel noise has this distribution (Vieira 2014), and needs no
    # exponential that could overflow and no probabilities that have to sum to one.
    clients = sorted(log_weights, key=client_order)
    noisy = dict(zip(clients, rng.gumbel(size=len(clients)), strict=True))
    possible = [client for client in clients if log_weights[client] > -math.inf]
    possible.sort(key=lambda client: -(log_weights[client] + noisy[client]))
    return tuple(possible[: max(count, 0)])


def round_half_up(number: float) -> int:
    """Round to the nearest whole number, halves up; 0.7 * 5 is 3.5, whatever its last bit."""
    return math.floor(round(number, 9) + 0.5)


def round_down(number: float) -> int:
    """Round down; 0.29 * 100 is 29, whatever its last bit."""
    return math.floor(round(number, 9))


def order_by_value(clients: Iterable[str], values: Mapping[str, float]) -> list[str]:
    """Return clients by value, the largest first; equals stay in the order given."""
    return sorted(clients, key=lambda client: -values[client])
