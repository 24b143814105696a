"""Selection in proportion to weight: those that weigh more in the mean are drawn more often."""

from collections.abc import Mapping
from dataclasses import dataclass

from pncs_flower.sampling import inclusion_chances, systematic_sample

from ..rule import Choice, Round, RuleState, SelectionRule, Summary
from ..rule_strategy import RuleStrategy

__all__ = ["ProportionalRule", "ProportionalSelection"]


@dataclass(frozen=True)
class ProportionalRule(SelectionRule):
    """Draw clients in proportion to their weight in the mean; see `ProportionalSelection`."""

    num_selected: int = 2

    draws = True

    def select(self, state: RuleState, now: Round, summaries: Mapping[str, Summary]) -> Choice:
        """Draw from those available, and say with which chances."""
        if now.num_selected >= len(now.available):
            return Choice(now.available)
        weights = {client: now.shares.get(client, 1.0) for client in now.available}
        chances = inclusion_chances(weights, now.num_selected)
        drawn = systematic_sample(chances, now.generator("proportional selection"))
        return Choice(drawn, chances={client: chances[client] for client in drawn})


class ProportionalSelection(RuleStrategy):
    """Select clients at random, in proportion to their weight; nobody is asked for anything.

    The weight is that in the base strategy's mean, in most the number of examples: as it came with
    the last update, else as the client says it when it introduces itself, else as the mean of the
    known. With the S chosen of those available, client k is chosen with the probability
    min(1, S w_k / Σ w); what the large ones leave over is for the others. Drawn so, with
    replacement, the scheme is known as MD sampling (arXiv:1812.06127, arXiv:2105.05883); here
    nobody is drawn twice (systematic sampling).

    As size decides who is drawn, it must not count again: with ``combine="mean"`` and
    ``"surrogates"`` (``"fedvarp"``) each update weighs w_k over its client's probability, equally
    if that is below 1 for all. ``"mifa"`` needs no correction: its mean is over all clients. The
    base strategy must take a mean, as FedAvg does, without differential privacy. It goes on to
    weigh by examples what is no weight of the model: metrics, and BatchNorm's statistics.

    With ``extra``, the probabilities are those of being chosen; which of the chosen count is then a
    matter of who is fast, for which nothing corrects.
    """

    rule_type = ProportionalRule
