"""The sketched mean: what full participation would have applied, of the updates that are there."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from pncs_flower.fit import SketchFit, median_norm, shortened_to_median
from pncs_flower.layers import ALL_LAYERS
from pncs_flower.protocol import SummaryRequest
from pncs_flower.sketches.kinds import parse_sketch

from ..checks import check_above_zero
from ..combination import Change, Combination, Delivery
from ..rule import Round
from .store import UpdateStore, norm, weighted_sum

__all__ = ["SketchedFit"]

_TINY = 1e-30  # of a squared norm
_LONGEST = 3.0  # sketch, in medians of their norms
_SKETCH = "count:256"


@dataclass(kw_only=True)
class SketchedFit(Combination):
    """Fit the mean of all clients by the updates delivered, in this round and earlier ones.

    The sketch of the mean of all updates is the mean of the sketches, which the server has. What
    is applied is the combination of updates whose sketch is nearest to it; what that leaves over is
    added to the mean of the next round (error feedback).

    Parameters
    ----------
    store : int or str (default: 100)
        Keep so many updates, the newest, or as many as fit into so many bytes, such as ``"2GB"``.
    dtype : {"float32", "float16"} (default: "float32")
        How updates are kept.
    bound : float (default: 1.0)
        The largest magnitude of an update's coefficient, above 0; ``inf`` for none.
    sketch : str (default: "count:256")
        What clients send of their whole update besides what the rule asks for. Of no effect where
        the rule asks for a sketch of it already, as that of `SketchedMean` does: give that one its
        own ``sketch``.
    """

    store: int | str = 100
    dtype: Literal["float32", "float16"] = "float32"
    bound: float = 1.0
    sketch: str = _SKETCH
    _updates: UpdateStore = field(init=False, repr=False, compare=False)
    _asked: str = field(init=False, repr=False, compare=False)

    asks_update: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.store is None:
            raise ValueError(
                "store is None, but each round adds updates, so there must be a limit: a number "
                "of updates, such as 100, or an amount of memory, such as '2GB'"
            )
        check_above_zero(bound=self.bound)
        self._asked = self.sketch = parse_sketch(self.sketch).spec
        self.begin(None)

    def begin(self, folder: Path | None) -> None:
        """Begin with nothing stored, and nothing left over."""
        self._updates = UpdateStore(self.store, self.dtype, folder)
        self._last: dict[str, np.ndarray] = {}
        self._leave_nothing()

    def _leave_nothing(self) -> None:
        self._left = np.zeros(0)
        self._left_by: set[str] = set()  # the clients whose sketches it is made of

    def request(self, wanted: SummaryRequest | None) -> SummaryRequest:
        """Ask for a sketch of the whole update besides, unless the rule asks for one."""
        if wanted is None or wanted.kind != "update":
            asks = "nobody" if wanted is None else f"for the {wanted.kind}"
            raise ValueError(
                "the sketched mean needs a sketch of each asked client's update, but the rule "
                f"asks {asks}: use one that asks for updates (SketchedMean, GradientMemory, PNCS "
                'with summary="update"), or combine="fedvarp", which needs no sketches'
            )
        of_all = wanted.whole and wanted.layers is None
        if of_all and self.sketch not in (_SKETCH, wanted.sketch):
            raise ValueError(
                f"the combination has sketch = {self.sketch!r}, but the rule itself asks for a "
                f"sketch of the whole update, {wanted.sketch!r}: give the rule the sketch "
                "(sketch=..., in settings rule.sketch) and not the combination"
            )
        self._asked = wanted.sketch if of_all else self.sketch
        sketch = parse_sketch(self._asked)
        if not (sketch.is_linear and sketch.same_in_every_round):
            raise ValueError(
                f"sketch is {self._asked!r}, but updates of several rounds are combined, which "
                "needs a linear sketch that is the same in each: 'count:SIZE' or 'layers'"
            )
        return wanted if of_all else replace(wanted, besides=self.sketch)

    def fit(self, now: Round, sketches: Mapping[str, np.ndarray]) -> SketchFit | None:
        """Return the mean of all sketches, to be fitted by those of the stored updates."""
        return self._fit(now, sketches)[0] if sketches else None

    def _fit(self, now: Round, sketches: Mapping[str, np.ndarray]) -> tuple[SketchFit, np.ndarray]:
        """Return the fit, and the mean that its target is made of."""
        rows = shortened_to_median(np.stack([*sketches.values()]), _LONGEST)
        mean = self._mean(now, dict(zip(sketches, rows, strict=True)))
        target = mean + self._left if len(self._left) else mean
        stored, longest = self._updates.entries, _LONGEST * median_norm(rows)
        fit = SketchFit(target, now.shares, bound=self.bound, longest=longest)
        fit = fit.with_columns(
            [update.client for update in stored],
            np.array([update.sketch for update in stored]),
            np.array([_square(update.norm, update.sketch) for update in stored]),
        )
        return fit, mean

    def _mean(self, now: Round, sketches: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the sketch of the mean of all, or its estimate if only some were asked."""
        # Each client's last sketch stands in for it, and the mean change of those that were asked
        # now for the change of all: SAGA's estimate (A. Defazio, F. Bach, S. Lacoste-Julien,
        # 2014). It has no bias if they are drawn at random, each weighed by 1 / its chance. Of
        # those not known, the last is 0; but one that was asked in vain has no say, as else the
        # mean would be the shorter for each of them.
        shares = {
            client: share
            for client, share in now.shares.items()
            if client in sketches or client in self._last or client not in now.last_asked
        }
        total = sum(shares.values()) / sum(now.shares.values())
        fresh = np.stack([*sketches.values()])
        chances = {} if len(sketches) == len(shares) else now.chances
        weights = np.array([now.shares[c] / chances.get(c, 1.0) for c in sketches])
        weights /= weights.sum()
        if len(sketches) == len(shares):
            return np.asarray(np.einsum("k,kr->r", weights, fresh))
        unknown = np.zeros(fresh.shape[1])
        last = np.stack([self._last.get(client, unknown) for client in sketches])
        mean: np.ndarray = np.einsum("k,kr->r", weights, fresh - last)
        for client, share in shares.items():
            if client in self._last:
                mean += share / total * self._last[client]
        return mean

    def combine(self, delivery: Delivery) -> Change | None:
        """Return the combination of stored and fresh updates that is nearest to the mean of all."""
        # Without the chosen that did not deliver: else a liar that never does could not be found,
        # and would count in every round.
        missing, updates, now = delivery.missing, delivery.updates, delivery.now
        shares = {client: share for client, share in now.shares.items() if client not in missing}
        total = sum(shares.values())
        now = replace(now, shares={client: share / total for client, share in shares.items()})
        sketches = {c: s for c, s in delivery.sketches.items() if c not in missing}
        if not sketches:
            return None
        fit, mean = self._fit(now, sketches)
        sketch, place = parse_sketch(self._asked), {"seed": now.seed, "round": now.number}
        fresh = {c: sketch.of(u, **place, layer=ALL_LAYERS) for c, u in updates.items()}
        squares = [_square(norm(update), fresh[client]) for client, update in updates.items()]
        fit = fit.with_columns(updates, np.stack([*fresh.values()]), np.array(squares))
        coefficients, stored = fit.coefficients(), self._updates.entries
        left = fit.residual(coefficients)
        names = [f"{each.client}@{each.round}" for each in stored]
        names += [f"{client}@{now.number}" for client in updates]
        record = {
            "coefficients": dict(zip(names, coefficients.tolist(), strict=True)),
            "residual": norm(left) / (norm(fit.target) or 1.0),
            **self._updates.about,
        }
        # A lie that no update fits would else add up without an end.
        left = left * min(1.0, norm(mean) / (norm(left) or 1.0))
        values = weighted_sum([*stored, *updates.values()], coefficients)
        return Change(values, record, (left, fresh))

    def keep(self, delivery: Delivery, change: Change) -> list[str]:
        """Store the fresh updates, and what is left over."""
        self._left, fresh = change.memory
        self._left_by |= delivery.sketches.keys()
        sketches = {**delivery.sketches, **fresh}
        rows = shortened_to_median(np.stack([*sketches.values()]), _LONGEST)
        # Copies, as each view of the rows would keep all of them.
        self._last |= zip(sketches, map(np.copy, rows), strict=True)
        for client in delivery.missing:
            self._last.pop(client, None)
        return self._updates.take(delivery.now.number, delivery.updates, fresh)

    def forget(self, client: str) -> None:
        """Drop a client's updates and its last sketch, and what is left over, partly its own."""
        self._updates.forget(client)
        self._last.pop(client, None)
        if client in self._left_by:
            self._leave_nothing()

    def state(self) -> dict[str, Any]:
        """Return what is stored, left over and last known of each client."""
        left = {"left": self._left, "left-by": sorted(self._left_by)}
        return {"updates": self._updates.state(), "last": dict(self._last), **left}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take up what `state` returned."""
        self._updates.restore(state["updates"])
        self._last = dict(state["last"])
        self._left, self._left_by = state["left"], set(state["left-by"])


def _square(length: float, sketch: np.ndarray | None) -> float:
    """Return the squared length of an update, taken for longer if its sketch is shorter than it."""
    # The fit does not weigh what a client, which can compute its sketch, has hidden from it.
    shown = 0.0 if sketch is None else norm(sketch) ** 2
    return length**2 * max(1.0, length**2 / max(shown, _TINY))
