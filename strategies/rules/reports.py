"""What rules read from the clients' reports: losses and sizes; and drawing clients by weight."""

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from pncs_flower.protocol import NUM_EXAMPLES, client_order

from ..errors import SelectionError
from ..rule import Metrics, Round

__all__ = [
    "draw",
    "order_by_value",
    "reported",
    "round_down",
    "round_half_up",
    "sizes",
]


_TELLING = 3  # the round from which even single clients tell that an app reports no such metric


def reported(
    delivered: Mapping[str, Metrics], key: str, option: str, now: Round, known: bool
) -> dict[str, float]:
    """Return a metric of each client that reported it with its update.

    Parameters
    ----------
    delivered : mapping of str to mapping
        The metrics of each update that arrived.
    key : str
        Name of the metric. One with ``_`` in place of ``-``, or the other way round, is taken too:
        Flower's examples report ``train_loss``, while its own keys are like ``num-examples``.
    option : str
        The rule's option that names it, for the error.
    now : Round
        The round.
    known : bool
        Whether a client has reported it in an earlier round.

    Raises
    ------
    SelectionError
        If nobody has ever reported the metric, and that is not the doing of one client: several
        updates arrived, or it is the third round. Clients without it are left out: one of another
        make must not end the run.
    """
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
    """Return how many training examples clients have, shape (K,), float64.

    Parameters
    ----------
    clients : sequence of str
        The K clients.
    now : Round
        Knows the sizes that clients told before.
    delivered : mapping of str to mapping, optional (default: None)
        Metrics that came with this round's updates, which count for more.

    Notes
    -----
    A client whose size nobody knows counts as the mean of the known ones; if none is known, all
    count as one example.
    """
    known = {client: now.num_examples[client] for client in clients if client in now.num_examples}
    for client in clients:
        size = (delivered or {}).get(client, {}).get(NUM_EXAMPLES, 0)
        if size > 0:
            known[client] = size
    mean = float(np.mean(list(known.values()))) if known else 1.0
    return np.array([known.get(client, mean) for client in clients], dtype=np.float64)


def draw(log_weights: Mapping[str, float], count: int, rng: np.random.Generator) -> tuple[str, ...]:
    """Draw clients one after the other without replacement, by weight.

    The chance of each to be the next is its weight over the sum of those left. The order of the
    largest log weights plus Gumbel noise has just this distribution (Vieira 2014), and needs no
    exponential that could overflow and no probabilities that have to sum to one.

    Parameters
    ----------
    log_weights : mapping of str to float
        Logarithm of each client's weight; -inf is never drawn.
    count : int
        How many to draw.
    rng : np.random.Generator
        Where the noise comes from.

    Returns
    -------
    tuple of str
        ``count`` clients, or all that have a weight if they are fewer. The same for any order of
        the mapping.
    """
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
