"""Uniform selection: every set of clients is as likely as any other."""

from collections.abc import Mapping
from dataclasses import dataclass

from pncs_flower.protocol import client_order

from ..rule import Choice, Round, RuleState, SelectionRule, Summary
from ..rule_strategy import RuleStrategy

__all__ = ["UniformRule", "UniformSelection"]


@dataclass(frozen=True)
class UniformRule(SelectionRule):
    """Draw clients uniformly, without replacement."""

    num_selected: int = 2

    def select(self, state: RuleState, now: Round, summaries: Mapping[str, Summary]) -> Choice:
        """Draw from the clients by key, so that who waited how long has no part in it."""
        clients = sorted(now.available, key=client_order)
        drawn = now.generator("uniform selection").permutation(len(clients))[: now.num_selected]
        return Choice(tuple(clients[index] for index in drawn))


class UniformSelection(RuleStrategy):
    """Select clients uniformly at random, without replacement; nobody is asked for anything."""

    rule_type = UniformRule
