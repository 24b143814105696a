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
    """The state of a search: the clients, members first; ``gain[i]``, what i adds to the sum."""

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
        # A step is some thirty calls of NumPy on a few numbers each: what counts is how many, and
        # that no view is made and no scalar wrapped in each step.
        objective, gain, clients = self.objective, self.gain, self.clients
        pairs, weights = objective.pairs.ravel(), objective.weights
        size, tolerance = objective.size, objective.tolerance
        members, outsiders = clients[:size], clients[size:]
        price = np.empty(len(clients))  # by place among the clients
        leaving_price, entering_price = price[:size], price[size:]
        free_again = np.zeros(len(clients), dtype=np.int64)  # the step, by place
        # Of the members and outsiders that a step looks at, every two.
        looked_at = min(size, _CANDIDATES), min(len(outsiders), _CANDIDATES)
        first, second = (places.ravel() for places in np.indices(looked_at))
        starts = np.arange(len(clients)) * len(clients)  # of the rows among the pairs
        # As many as a leg may need, so that a longer search begins like a shorter one.
        stays_out = random.integers(1, self.longest_out + 1, _LEG)
        stays_in = random.integers(1, self.longest_in + 1, _LEG)
        idle = 0
        for step in range(steps):
            self._prices().take(clients, None, price, "clip")
            np.negative(leaving_price, leaving_price)
            price[free_again > step] = np.inf
            leaving, entering = _lowest(leaving_price), _lowest(entering_price)
            out, into = members[leaving][first], outsiders[entering][second]
            change = gain[into] - gain[out]
            change -= pairs[starts[out] + into]
            values = change + self.total
            if weights is not None:
                values /= (self.weight + (weights[into] - weights[out])) ** 2
            best = int(values.argmin())
            left, entered = leaving.item(first[best]), size + entering.item(second[best])
            clients[left], clients[entered] = insider, outsider = into.item(best), out.item(best)
            free_again[left] = step + 1 + stays_in.item(step)
            free_again[entered] = step + 1 + stays_out.item(step)
            gain += objective.pairs[insider]
            gain -= objective.pairs[outsider]
            self.total += change.item(best)
            if weights is not None:
                self.weight += weights.item(insider) - weights.item(outsider)
            idle += 1
            if values.item(best) <= self.best_value + tolerance and self._take_if_better():
                idle = self.shakes = 0
            if idle == self.patience or time.monotonic() > deadline:
                return step + 1
        return steps

    def _take_if_better(self) -> bool:
        """Note the subset if it is to be preferred to the best; tell if its value is less."""
        members = self.clients[: self.objective.size]
        found = tuple(sorted(members.tolist()))
        if found == self.best:
            return False
        value, tolerance = self.objective.value(members), self.objective.tolerance
        better = value < self.best_value - tolerance
        tie = value <= self.best_value + tolerance
        if better or (tie and self.objective.prefers(found, self.best)):
            self.best, self.best_value = found, value
        return better

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
        outsiders = np.setdiff1d(np.arange(len(objective.linear)), members)
        self.clients = np.concatenate([members, outsiders])
        self.gain: np.ndarray = objective.linear + objective.pairs[members].sum(axis=0)
        within = (objective.linear[members].sum() + self.gain[members].sum()) / 2
        self.total = float(objective.offset + within)
        self.weight = -objective.weight_offset
        if objective.weights is not None:
            self.weight += float(objective.weights[members].sum())

    def _prices(self) -> np.ndarray:
        """Return what each client adds to the value, to first order."""
        if self.objective.weights is None:
            return self.gain
        return np.asarray(self.gain - 2 * self.total / self.weight * self.objective.weights)


def _lowest(prices: np.ndarray) -> np.ndarray:
    """Return the places of the lowest prices."""
    if len(prices) <= _CANDIDATES:
        return np.arange(len(prices))
    return prices.argpartition(_CANDIDATES)[:_CANDIDATES]
