"""DivFL: the clients that stand for all others, by facility location on gradient distances."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from pncs_flower.rows import Rows
from pncs_flower.sketches.kinds import parse_sketch

from ..checks import check_flags, check_share
from ..rule import Choice, Metrics, Round, RuleState, Summary
from ..rule_strategy import RuleStrategy
from ..sketch_rule import SketchRule

__all__ = ["DivFL", "DivFLRule"]

_CANCELLED = 1e-3  # of the squared norms; a smaller squared distance is not taken from products
_TIE = 1e-9  # sums that differ by less are equal: their last bits depend on the terms' order


def pairwise_distances(vectors: np.ndarray) -> np.ndarray:
    """Return the L2 distance of every two of K vectors, shape (K, K); exactly 0 for equal ones."""
    rows, count = Rows.of(vectors), len(vectors)
    (products,) = rows.power_products(np.ones(count), 2, "float64")
    norms = np.diagonal(products)
    sums = norms[:, None] + norms[None, :]
    squares = np.maximum(sums - 2 * products, 0)
    np.fill_diagonal(squares, 0.0)
    one, other = np.nonzero(np.triu(squares <= _CANCELLED * sums, 1))
    signs = np.ones((2, len(one))) * [[1], [-1]]
    squares[one, other] = squares[other, one] = rows.pair_power_sums(one, other, signs, 2)
    return np.asarray(np.sqrt(squares))


def facility_location(
    distances: np.ndarray, size: int, rng: np.random.Generator | None = None, sample: int = 0
) -> tuple[int, ...]:
    """Choose columns greedily so that every row is near to one of them; the first among equals."""
    # With ``rng``, each step looks at ``sample`` columns drawn from those left (stochastic
    # greedy).
    nearest = np.full(len(distances), np.inf)
    chosen: list[int] = []
    for _ in range(size):
        left = [column for column in range(distances.shape[1]) if column not in chosen]
        if rng is not None and sample < len(left):
            left = sorted(rng.choice(left, sample, replace=False).tolist())
        sums = np.minimum(nearest[:, None], distances[:, left]).sum(axis=0)
        best = left[int(np.argmax(sums <= sums.min() * (1 + _TIE)))]
        nearest = np.minimum(nearest, distances[:, best])
        chosen.append(best)
    return tuple(chosen)


@dataclass(frozen=True)
class DivFLRule(SketchRule):
    """See `DivFL`; if stale, it remembers each client's last summary, and who owes a new one."""

    stochastic: bool = False
    sample_share: float = 0.1
    stale: bool = False

    # Only with `stale` is anybody available that was not asked.
    chooses_unasked: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        sketch = parse_sketch(self.sketch)
        if not sketch.is_linear:
            raise ValueError(
                f"sketch is {self.sketch!r}, but distances need one that is linear: 'layers', "
                "'coordinates:SIZE' or 'count:SIZE'"
            )
        check_share(sample_share=self.sample_share)
        if self.stale and not sketch.same_in_every_round:
            raise ValueError(
                f"sketch is {self.sketch!r} with stale=True, but other coordinates are drawn in "
                "each round, and summaries of several rounds are compared: use 'layers' or "
                "'count:SIZE'"
            )
        check_flags(stale=self.stale, stochastic=self.stochastic)

    def initial_state(self) -> RuleState:
        """No summary is known."""
        return {"table": {}, "outdated": []}

    def candidates(self, state: RuleState, now: Round) -> tuple[str, ...]:
        """Ask all, also those that cool down; if stale, those new or changed since their last."""
        if not self.stale:
            return now.clients
        table, outdated = state["table"], state["outdated"]
        return tuple(c for c in now.clients if c not in table or c in outdated)

    def select(self, state: RuleState, now: Round, summaries: Mapping[str, Summary]) -> Choice:
        """Choose by facility location over all clients whose summary is known."""
        fresh = {c: np.concatenate(list(summary.values())) for c, summary in summaries.items()}
        table = {**state["table"], **fresh}
        known = [client for client in now.clients if client in table]
        distances = pairwise_distances(np.stack([table[client] for client in known]))
        columns = [known.index(client) for client in now.available]
        chosen = facility_location(
            distances[:, columns],
            now.num_selected,
            now.generator("stochastic greedy") if self.stochastic else None,
            max(now.num_selected, math.ceil(round(self.sample_share * len(columns), 9))),
        )
        outdated = [client for client in state["outdated"] if client not in fresh]
        return Choice(
            tuple(now.available[index] for index in chosen),
            state={"table": table, "outdated": outdated} if self.stale else None,
        )

    def observe(self, state: RuleState, now: Round, delivered: Mapping[str, Metrics]) -> RuleState:
        """Ask those that trained for a new summary in the next round, if stale ones are used."""
        if not self.stale:
            return state
        return {**state, "outdated": [*state["outdated"], *delivered]}


class DivFL(RuleStrategy):
    """Select clients by submodular diversity (DivFL, Balakrishnan et al., ICLR 2022).

    The chosen make the sum over all clients of the L2 distance to the nearest chosen one small, so
    that each stands for those near to it. The search is greedy: each step adds the client that
    lowers the sum most. Clients that cool down are asked too: they have to be stood for.

    Parameters
    ----------
    sketch : str or Sketch (default: "count:256")
        What a client sends of each layer: ``"layers"``, ``"count:R"`` or ``"coordinates:R"``, with
        which a layer weighs by the numbers sent, not by its size.
    layers : sequence of str, optional (default: None)
        Layers to compare; all if None.
    summary : {"update", "gradient"} (default: "update")
        Compare local updates, or gradients at the current weights, which the app must be able to
        give (`pncs_flower.clients.SummaryMod`).
    stochastic : bool (default: False)
        Whether each greedy step looks at a random sample of the clients only.
    sample_share : float (default: 0.1)
        The sample's share of the available clients, rounded up; at least ``num_selected``.
    stale : bool (default: False)
        Keep the last known summaries, and ask only those that have none or have trained since: one
        round later, at the weights that their update led to, where the paper's code takes the
        gradient of the last participation itself.
    """

    rule_type = DivFLRule
