"""Whom training serves, in a few numbers: who had a turn how often, and how good it is for whom.

NumPy alone, for a script of your own too::

    turns = Participation(clients)
    for record in strategy.history:
        turns.add(record.delivered)
    print(turns.never, turns.gini, turns.jain, turns.longest_wait)
"""

from collections.abc import Collection, Iterable

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["Participation", "accuracy_by_client", "gini", "jain", "worst_tenth"]

_LARGE = 1e290  # of such numbers, a sum may be infinite


def gini(values: ArrayLike) -> float:
    r"""Return Gini's coefficient: how unequal numbers are.

    ``sum_ij |x_i - x_j| / (2 n sum_i x_i)``: half of the mean difference between two of them,
    relative to their mean. 0 if all are equal, also if all are 0; ``1 - 1/n`` if one has all.

    Parameters
    ----------
    values : array-like
        Shape (n,), n at least 1, finite and not negative, such as the times that each client was
        chosen.

    References
    ----------
    C. Gini, Variabilità e mutabilità, 1912; in this form: A. Sen, On Economic Inequality, 1973.
    """
    x = np.sort(_checked(values))
    if x[-1] > _LARGE:
        x = x / x[-1]  # sums stay in range
    total = x.sum()
    # Of the sorted numbers, the i-th is the larger of a pair i - 1 times, the smaller n - i times.
    signs = 2 * np.arange(1, len(x) + 1) - len(x) - 1
    return float(signs @ x / (len(x) * total)) if total else 0.0


def jain(values: ArrayLike) -> float:
    """Return Jain's index: how equal numbers are.

    ``(sum_i x_i)**2 / (n sum_i x_i**2)``: 1 if all are equal, also if all are 0; ``k/n`` if k of
    them share all alike and the others have none.

    Parameters
    ----------
    values : array-like
        Shape (n,), n at least 1, finite and not negative.

    References
    ----------
    R. Jain, D. Chiu, W. Hawe, A Quantitative Measure of Fairness and Discrimination for Resource
    Allocation in Shared Computer Systems, DEC-TR-301, 1984, equation 2.
    """
    x = _checked(values)
    largest = x.max()
    if not largest:
        return 1.0
    x = x / largest  # squares stay in range
    return float(x.sum() ** 2 / (len(x) * (x * x).sum()))


def worst_tenth(accuracies: ArrayLike) -> float | None:
    """Return the mean of the lowest tenth of numbers, rounded up: of 25, the lowest three.

    Those that are NaN are left out; None if no other is there.

    References
    ----------
    T. Li, M. Sanjabi, A. Beirami, V. Smith, Fair Resource Allocation in Federated Learning, 2020,
    arXiv:1905.10497, whose tables have "worst 10%" and the variance over clients.
    """
    x = np.asarray(accuracies, dtype=np.float64).ravel()
    x = np.sort(x[~np.isnan(x)])
    return float(x[: -(-len(x) // 10)].mean()) if len(x) else None


def accuracy_by_client(labels: ArrayLike, by_class: ArrayLike) -> NDArray[np.float64]:
    """Return a model's accuracy for each client: that of each class, weighted by its labels.

    So it is that of test examples which have the client's labels, not that of the client's own
    examples.

    Parameters
    ----------
    labels : array-like
        How many training examples of each class the clients have, shape (clients, classes).
    by_class : array-like
        The model's accuracy on the test examples of each class, shape (classes,); NaN where there
        are none: such a class does not count.

    Returns
    -------
    array
        Shape (clients,); NaN for a client without an example of a class that counts.
    """
    accuracy = np.asarray(by_class, dtype=np.float64)
    weights = np.asarray(labels, dtype=np.float64) * ~np.isnan(accuracy)
    # Sums and no product of matrices, whose last bits depend on the number of threads.
    total = weights.sum(axis=1)
    right = (weights * np.nan_to_num(accuracy)).sum(axis=1)
    return np.where(total > 0, right / np.where(total > 0, total, 1.0), np.nan)


class Participation:
    """Who had a turn in which round, round by round; what a turn is says who adds them.

    Parameters
    ----------
    clients : iterable of str (default: empty)
        All that could have had a turn. One that is first met later counts as there from the start.

    Attributes
    ----------
    rounds : int
        How many were added.
    times : dict of str to int
        How often each client had a turn.
    never : int
        How many clients had none.
    """

    def __init__(self, clients: Iterable[str] = ()) -> None:
        self.rounds = 0
        self.times: dict[str, int] = {}
        self.never = 0
        self._last: dict[str, int] = {}
        self._longest = 0
        self.meet(clients)

    def meet(self, clients: Iterable[str]) -> None:
        """Count clients among those that could have had a turn."""
        for client in clients:
            if client not in self.times:
                self.times[client] = self._last[client] = 0
                self.never += 1

    def add(self, turns: Collection[str]) -> None:
        """Add a round, in which these clients had a turn."""
        self.meet(turns)
        self.rounds += 1
        for client in set(turns):
            self._longest = max(self._longest, self.rounds - self._last[client] - 1)
            self._last[client] = self.rounds
            self.never -= not self.times[client]
            self.times[client] += 1

    @property
    def longest_wait(self) -> int:
        """The most rounds in a row in which the same client had no turn.

        Those before its first and after its last turn count too: all, if it never had one.
        """
        return max(self._longest, self.rounds - min(self._last.values(), default=self.rounds))

    @property
    def gini(self) -> float:
        """Gini's coefficient of the times."""
        return gini(list(self.times.values()))

    @property
    def jain(self) -> float:
        """Jain's index of the times."""
        return jain(list(self.times.values()))


def _checked(values: ArrayLike) -> NDArray[np.float64]:
    x = np.asarray(values, dtype=np.float64)
    if x.ndim != 1 or not len(x):
        raise ValueError(f"there must be a list of at least one number, not {x.shape}")
    if not (np.isfinite(x).all() and (x >= 0).all()):
        bad = x[~(np.isfinite(x) & (x >= 0))][0]
        raise ValueError(f"{bad} is among the numbers, but all must be finite and at least 0")
    return x
