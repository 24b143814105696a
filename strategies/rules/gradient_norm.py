"""Gradient norm: the clients with the longest gradients, at one number per layer."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import get_args

import numpy as np

from pncs_flower.protocol import SummaryRequest

from ..checks import check_layers, check_one_of
from ..reports import order_by_value
from ..rule import Choice, Round, RuleState, SelectionRule, Summary, replaced
from ..rule_strategy import RuleStrategy
from ..sketch_rule import Compared

__all__ = ["GradientNorm", "GradientNormRule"]


@dataclass(frozen=True)
class GradientNormRule(SelectionRule):
    """Choose the largest L2 norms; see `GradientNorm`."""

    num_selected: int = 2
    layers: tuple[str, ...] | None = None
    summary: Compared = "update"

    def __post_init__(self) -> None:
        replaced(self, layers=check_layers(self.layers))
        check_one_of(get_args(Compared), summary=self.summary)

    @property
    def request(self) -> SummaryRequest:
        """The norm of each layer."""
        return SummaryRequest(self.summary, "norm", self.layers)

    def select(self, state: RuleState, now: Round, summaries: Mapping[str, Summary]) -> Choice:
        """Choose the largest norms over all layers; the first among equals."""
        norms = {
            client: float(np.linalg.norm(np.concatenate(list(summary.values())).astype(np.float64)))
            for client, summary in summaries.items()
        }
        return Choice(tuple(order_by_value(now.available, norms)[: now.num_selected]))


class GradientNorm(RuleStrategy):
    """Select the clients with the largest gradients (Marnissi et al. 2021, arXiv:2111.11204).

    All available clients send the L2 norm of each layer; the largest norms over all layers are
    chosen.

    Parameters
    ----------
    layers : sequence of str, optional (default: None)
        Layers to look at; all if None.
    summary : {"update", "gradient"} (default: "update")
        The norm of the local update, or of the gradient at the current weights, which the app must
        be able to give (`pncs_flower.clients.SummaryMod`).
    """

    rule_type = GradientNormRule
