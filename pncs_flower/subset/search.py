"""A good subset where there are too many to look at each: a greedy start and a tabu search."""

import math
import sys
import time

import numpy as np

from pncs_flower.randomness import generator
from pncs_flower.subset.objective import SubsetObjective

_CANDIDATES = 8  # members, and outsiders, that a step looks at: the most promising of each
_PATIENCE = 2_000  # steps at most without a better subset before the best one is shaken
_PATIENCE_PER_CLIENT = 5
_LEG = 10_000  # steps at most between shakes
_TENURE = 25  # steps at most for which an exchange may not be undone
_LEAST_SHAKEN = 5
_SHAKEN = 0.25  # part of the members that a first shake exchanges


def search_subset(
    objective: SubsetObjective, seed: int, steps: int, budget_seconds: float | None = None
) -> tuple[int, ...]:
    """Return a good subset, found in so many steps, or else in so many seconds."""
    # This is maximum diversity: G. Palubeckis, "Iterated tabu search for the maximum diversity
    # problem", 2007. The best exchange of the most promising is made, better or not, and
    # may not be undone for a few steps; when nothing better turns up, the best subset is shaken.
    random = generator(seed, "subset-search")
    search = _TabuSearch(objective, _greedy(objective))
    deadline = math.inf
    if budget_seconds is not None:
        steps, deadline = sys.maxsize, time.monotonic() + budget_seconds
    while steps and time.monotonic() < deadline:
        steps -= search.run(min(_LEG, steps), random, deadline)
        search.shake(random)
    return search.best


def _greedy(objective: SubsetObjective) -> np.ndarray:
    """Return a subset grown from the cheapest pair by the cheapest client at each step."""
    pairs, linear = objective.pairs, objective.linear
    members = list(_cheapest_pair(pairs, linear))[: objective.size]
    gain = linear + pairs[members].sum(axis=0)
    while len(members) < objective.size:
        gain[members] = np.inf
        cheapest = np.flatnonzero(gain == gain.min())
        client = int(cheapest[-1 if objective.complemented else 0])  # as the rule for ties has it
        members.append(client)
        gain += pairs[client]
    return np.array(members)


def _cheapest_pair(pairs: np.ndarray, linear: np.ndarray) -> tuple[int, int]:
    best, found = np.inf, (0, 1)
    for client, row in enumerate(pairs):
        costs = row + linear[client] + linear
        costs[client] = np.inf
        other = int(costs.argmin())
        if costs[other] < best:
            best, found = costs[other], (client, other)
    return found


class _TabuSearch:
    """The state of a search: ``gain[i]`` is what client i adds to the sum, given the members."""

    def __init__(self, objective: SubsetObjective, members: np.ndarray) -> None:
        self.objective = objective
        self.shakes = 0  # since there was something better
        self.best = tuple(sorted(members.tolist()))
        self.best_value = objective.value(members)
        num_clients, size = len(objective.linear), objective.size
        self.longest_out = max(1, min(_TENURE, (num_clients - size) // 2))
        self.patience = min(_PATIENCE, _PATIENCE_PER_CLIENT * num_clients)
        self.longest_in = max(1, min(_TENURE, size // 2))
        self._start_from(members)

    def run(self, steps: int, random: np.random.Generator, deadline: float) -> int:
        """Exchange until steps, patience or time run out; return the number of steps."""
        pairs, weights = self.objective.pairs, self.objective.weights
        tolerance = self.objective.tolerance
        # As many as a leg may need, so that a longer search begins like a shorter one.
        stays_out = random.integers(1, self.longest_out + 1, _LEG)
        stays_in = random.integers(1, self.longest_in + 1, _LEG)
        idle = 0
        for step in range(steps):
            price = self._prices()
            leaving = self._free(-price.take(self.members), self.members, step)
            entering = self._free(price.take(self.outsiders), self.outsiders, step)
            out, into = self.members.take(leaving), self.outsiders.take(entering)
            change = self.gain.take(into) - self.gain.take(out)[:, None]
            change -= pairs[out[:, None], into]
            values = self.total + change
            if weights is not None:
                values /= (self.weight + (weights[into] - weights[out][:, None])) ** 2
            row, column = divmod(int(values.argmin()), len(into))
            self._exchange(leaving[row], entering[column], change[row, column])
            self.free_again[out[row]] = step + 1 + stays_out[step]
            self.free_again[into[column]] = step + 1 + stays_in[step]
            idle += 1
            if values[row, column] <= self.best_value + tolerance:
                found = tuple(sorted(self.members.tolist()))
                value = self.objective.value(self.members)
                better = value < self.best_value - tolerance
                if better or (
                    value <= self.best_value + tolerance
                    and self.objective.prefers(found, self.best)
                ):
                    self.best, self.best_value = found, value
                    if better:
                        idle = self.shakes = 0
            if idle == self.patience or time.monotonic() > deadline:
                return step + 1
        return steps

    def shake(self, random: np.random.Generator) -> None:
        """Start from the best subset with members exchanged at random, more each time."""
        self.shakes += 1
        part = _SHAKEN * ((self.shakes - 1) % round(1 / _SHAKEN) + 1)
        members = np.array(self.best)
        outsiders = np.setdiff1d(np.arange(len(self.gain)), members)
        count = min(max(_LEAST_SHAKEN, round(part * len(members))), len(members), len(outsiders))
        leaving = random.choice(len(members), count, replace=False)
        members[leaving] = random.choice(outsiders, count, replace=False)
        self._start_from(members)

    def _start_from(self, members: np.ndarray) -> None:
        objective = self.objective
        self.members = members
        self.outsiders = np.setdiff1d(np.arange(len(objective.linear)), members)
        self.gain: np.ndarray = objective.linear + objective.pairs[members].sum(axis=0)
        within = (objective.linear[members].sum() + self.gain[members].sum()) / 2
        self.total = float(objective.offset + within)
        self.weight = -objective.weight_offset
        if objective.weights is not None:
            self.weight += float(objective.weights[members].sum())
        self.free_again = np.zeros(len(objective.linear), dtype=np.int64)

    def _prices(self) -> np.ndarray:
        """Return what each client adds to the value, to first order."""
        if self.objective.weights is None:
            return self.gain
        return np.asarray(self.gain - 2 * self.total / self.weight * self.objective.weights)

    def _free(self, prices: np.ndarray, clients: np.ndarray, step: int) -> np.ndarray:
        """Return the places of the lowest prices among the clients that may move."""
        if len(prices) <= _CANDIDATES:
            return np.arange(len(prices))
        prices[self.free_again.take(clients) > step] = np.inf
        return prices.argpartition(_CANDIDATES)[:_CANDIDATES]

    def _exchange(self, leaving: int, entering: int, change: float) -> None:
        out, into = self.members[leaving], self.outsiders[entering]
        self.members[leaving], self.outsiders[entering] = into, out
        self.gain += self.objective.pairs[into]
        self.gain -= self.objective.pairs[out]
        self.total += change
        if self.objective.weights is not None:
            self.weight += self.objective.weights[into] - self.objective.weights[out]
