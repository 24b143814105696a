"""GradientMemory: the clients that make up for what the rounds so far have left out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from pncs_flower.randomness import derive_seed
from pncs_flower.sketches.kinds import parse_sketch
from pncs_flower.subset.least_aligned import nearest_mean_subset

from ..checks import check_factor, check_flags, check_one_of, check_whole, given
from ..reports import sizes
from ..rule import Choice, Metrics, Round, RuleState, Summary
from ..rule_strategy import RuleStrategy
from ..sketch_rule import SketchRule, longest_unasked

__all__ = ["GradientMemory", "GradientMemoryRule"]


@dataclass(frozen=True)
class GradientMemoryRule(SketchRule):
    """See `GradientMemory`; it remembers R, and each client's last sketch."""

    normalize: bool = False
    forgetting: float = 1.0
    weights: Literal["examples", "uniform"] = "examples"
    num_candidates: int | None = field(default=None, metadata={"name": "candidates"})

    chooses_unasked = True

    def __post_init__(self) -> None:
        super().__post_init__()
        sketch = parse_sketch(self.sketch)
        if not (sketch.is_linear and sketch.same_in_every_round):
            raise ValueError(
                f"sketch is {self.sketch!r}, but the memory adds up sketches of several rounds, "
                "which needs a linear one that is the same in each: 'count:R' or 'layers'"
            )
        check_flags(normalize=self.normalize)
        check_factor(forgetting=self.forgetting)
        check_one_of(("examples", "uniform"), weights=self.weights)
        check_whole(least=1, **given(candidates=self.num_candidates))

    def initial_state(self) -> RuleState:
        """Nothing is left over and nobody is known."""
        return {"residual": np.zeros(0), "table": {}}

    def candidates(self, state: RuleState, now: Round) -> tuple[str, ...]:
        """Ask all, also those that cool down; or those not asked for the longest time."""
        return longest_unasked(now.clients, self.num_candidates, now)

    def select(self, state: RuleState, now: Round, summaries: Mapping[str, Summary]) -> Choice:
        """Choose the clients whose mean is nearest to the residual plus the mean of all."""
        fresh = {client: self._vector(summary) for client, summary in summaries.items()}
        # A client that has left keeps its row, in case it comes back, but does not count.
        table = {**state["table"], **fresh}
        after = {**state, "table": table}
        known = [client for client in now.available if client in table]
        # Clients nobody knows yet fill up what is missing, the longest waiting first.
        unknown = [client for client in now.available if client not in table]
        size = min(now.num_selected, len(known))
        chosen, optimal = unknown[: now.num_selected - size], None
        if size:
            indices, optimal = nearest_mean_subset(
                np.stack([table[client] for client in known]),
                self._wanted(after, now),
                size,
                weights=self._weights(known, now),
                seed=derive_seed(now.seed, "subset search", now.number),
            )
            chosen = [*(known[index] for index in indices), *chosen]
        return Choice(tuple(chosen), optimal=optimal, state=after)

    def observe(self, state: RuleState, now: Round, delivered: Mapping[str, Metrics]) -> RuleState:
        """Add the mean of all to the residual and take out what was applied."""
        table = state["table"]
        if table.keys().isdisjoint(now.clients):
            return state
        residual = self._wanted(state, now)
        applied = [client for client in delivered if client in table]
        if applied:
            residual = residual - self._mean(applied, state, now)
        return {**state, "residual": residual}

    def _wanted(self, state: RuleState, now: Round) -> np.ndarray:
        """Return what is left over and the mean of all clients known."""
        residual, known = state["residual"], [c for c in now.clients if c in state["table"]]
        mean = self._mean(known, state, now)
        return self.forgetting * residual + mean if len(residual) else mean

    def _mean(self, clients: Sequence[str], state: RuleState, now: Round) -> np.ndarray:
        vectors = np.stack([state["table"][client] for client in clients])
        return np.asarray(self._weights(clients, now) @ vectors)

    def _vector(self, summary: Summary) -> np.ndarray:
        vector = np.concatenate([np.asarray(v, np.float64) for v in summary.values()])
        norm = np.linalg.norm(vector)
        return vector / norm if self.normalize and norm > 0 else vector

    def _weights(self, clients: Sequence[str], now: Round) -> np.ndarray:
        """Return weights of sum 1: n_k/n, or equal. A client of unknown size counts as the mean."""
        size = sizes(clients, now) if self.weights == "examples" else np.ones(len(clients))
        return np.asarray(size / size.sum())


class GradientMemory(RuleStrategy):
    """Select the clients that leave the least gradient behind, over all rounds so far.

    The strategy keeps the gradient mass that has not been applied yet, R. With the weighted mean m
    of all clients' sketches and the mean m_S of the chosen ones, R <- f R + m - m_S, and the subset
    S is the one that makes the norm of the new R least. Rotation and diversity both follow: a
    client left out for long is what R is made of, and similar clients are not needed twice.

    Parameters
    ----------
    sketch : str or Sketch (default: "count:256")
        What a client sends of each layer: ``"count:R"``, which keeps inner products, or
        ``"layers"``.
    layers : sequence of str, optional (default: None)
        Layers to look at; all if None.
    summary : {"update", "gradient"} (default: "update")
        Sketch the local update, or the gradient at the current weights, which is cheaper where
        clients train for several epochs.
    normalize : bool (default: False)
        Give every client's sketch the length 1.
    forgetting : float (default: 1.0)
        How much of R is kept from round to round (f), above 0; 1 forgets nothing.
    weights : {"examples", "uniform"} (default: "examples")
        Weight clients by their number of examples (``num-examples``), as FedAvg does, or equally.
    candidates : int, optional (default: None)
        Ask so many clients each round, those not asked for the longest time first; the last known
        sketches of the others stand in for them. All are asked if None.

    Notes
    -----
    A client that fails to answer is not chosen, but its last known sketch still counts in m; that
    of one that has left does not. What a chosen client fails to deliver stays in R.
    """

    rule_type = GradientMemoryRule
