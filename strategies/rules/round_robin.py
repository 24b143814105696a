"""Round robin: those who have waited longest."""

from collections.abc import Mapping
from dataclasses import dataclass

from pncs_flower.randomness import derive_seed

from ..rule import Choice, Round, RuleState, SelectionRule, Summary
from ..rule_strategy import RuleStrategy

__all__ = ["RoundRobin", "RoundRobinRule"]


@dataclass(frozen=True)
class RoundRobinRule(SelectionRule):
    """Choose the longest waiting; a seeded permutation decides between equals."""

    num_selected: int = 2

    def select(self, state: RuleState, now: Round, summaries: Mapping[str, Summary]) -> Choice:
        """Choose by the round of the last turn, then by the permutation."""

        def turn(client: str) -> tuple[int, int]:
            # Drawn anew in each round: with one order for the whole run, and a number of clients
            # that num_selected does not divide, the first in it would be chosen every time.
            return now.last_rounds[client], derive_seed(now.seed, "turn", now.number, client)

        return Choice(tuple(sorted(now.available, key=turn)[: now.num_selected]))


class RoundRobin(RuleStrategy):
    """Select the clients whose last turn is longest ago; nobody is asked for anything.

    A client that was chosen and failed has had its turn.
    """

    rule_type = RoundRobinRule
