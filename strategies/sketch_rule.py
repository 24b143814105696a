"""What several rules ask for, and whom."""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from pncs_flower.protocol import SummaryRequest, client_order
from pncs_flower.sketches.kinds import parse_sketch

from .checks import check_layers, check_one_of, check_whole
from .rule import Round, SelectionRule, replaced

Compared = Literal["update", "gradient"]


@dataclass(frozen=True)
class SketchRule(SelectionRule):
    """A rule that asks for a sketch of the gradient or of the local update."""

    num_selected: int = 2
    sketch: str = "count:256"
    layers: tuple[str, ...] | None = None
    summary: Compared = "update"

    def __post_init__(self) -> None:
        replaced(self, sketch=parse_sketch(self.sketch).spec, layers=check_layers(self.layers))
        check_one_of(get_args(Compared), summary=self.summary)

    @property
    def request(self) -> SummaryRequest:
        """A sketch of the gradient or of the local update."""
        return SummaryRequest(self.summary, self.sketch, self.layers)


def check_candidates(num_candidates: int, num_selected: int, otherwise: str = "") -> None:
    """Refuse fewer candidates than are chosen among them."""
    check_whole(num_selected=num_selected, candidates=num_candidates)
    if num_candidates < num_selected:
        raise ValueError(
            f"candidates is {num_candidates}, but {num_selected} of them are chosen in a round: "
            f"use at least {num_selected}{otherwise}"
        )


def longest_unasked(clients: tuple[str, ...], count: int | None, now: Round) -> tuple[str, ...]:
    """Return those not asked for the longest time, drawing between equals; all if None."""
    if count is None:
        return clients
    ordered = sorted(clients, key=client_order)
    draw = now.generator("candidates").permutation(len(ordered))
    asked = np.array([now.last_asked.get(client, 0) for client in ordered])
    return tuple(ordered[place] for place in np.lexsort((draw, asked))[:count])
