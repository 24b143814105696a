"""A selection rule from a fitted model of pairs: what a study found, at work."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from pncs_flower.protocol import SummaryRequest
from pncs_flower.randomness import derive_seed
from pncs_flower.strategies import Choice, Round, SelectionRule
from pncs_flower.strategies.rule import RuleState, Summary
from pncs_flower.subset import least_aligned_subset

from .features import client_pairs, pair_features
from .model import PairModel

__all__ = ["PairRule", "rule_file"]


@dataclass(frozen=True)
class PairRule(SelectionRule):
    """Choose the subset whose pairs have the highest mean score; a subclass names the model.

    Clients send the gradient of the trained layers as it is. As in PNCS, arXiv:2506.15923, eq.
    (10), the pairs of a larger subset are averaged.

    Attributes
    ----------
    num_selected : int
        How many clients a round selects.
    """

    model: ClassVar[PairModel]
    num_selected: int = 2

    @property
    def request(self) -> SummaryRequest:
        """The gradient at the current weights."""
        return SummaryRequest("gradient", "layers")

    def select(self, state: RuleState, now: Round, summaries: Mapping[str, Summary]) -> Choice:
        """Choose by the mean score of pairs."""
        clients = list(summaries)
        gradients = np.stack([np.concatenate(list(each.values())) for each in summaries.values()])
        unlike = np.zeros((len(clients), len(clients)))
        if len(clients) > 1:
            first, second = client_pairs(len(clients)).T
            scores = self.model.score(pair_features(gradients))
            unlike[first, second] = unlike[second, first] = -scores
        subset = least_aligned_subset(
            unlike, now.num_selected, seed=derive_seed(now.seed, "subset search", now.number)
        )
        return Choice(tuple(clients[i] for i in subset.indices), optimal=subset.optimal)


def rule_file(model: PairModel) -> str:
    """Return a Python file with the model as a rule called ``Fitted``."""
    return (
        '"""A rule fitted by pncs reproduce table1; with this folder on PYTHONPATH:\n\n'
        'pncs run --strategy fitted_rule:Fitted\n"""\n\n'
        "from dataclasses import dataclass\n\n"
        "from pncs_flower.simulations.study.model import PairModel\n"
        "from pncs_flower.simulations.study.rule import PairRule\n\n\n"
        "@dataclass(frozen=True)\n"
        "class Fitted(PairRule):\n"
        '    """Choose by the fitted score of pairs."""\n\n'
        f"    model = PairModel.from_json({model.to_json()!r})\n"
    )
