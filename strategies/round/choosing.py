"""The choice of a round: the rule's, or by waiting time where too few summaries came."""

import time
from collections.abc import Mapping, Sequence
from logging import WARNING

from flwr.common import log
from flwr.serverapp.strategy import Strategy

from pncs_flower.protocol import client_order

from ..errors import NoSummariesError
from ..options import CheckedOptions
from ..record import RoundRecord
from ..replies.layers import check_averages
from ..rule import Choice, SelectionRule, Summary
from .selector import Plan, Selector

__all__ = ["Choosing"]


class Choosing:
    """Chooses among the clients whose summaries came.

    Parameters
    ----------
    rule : SelectionRule
        The rule.
    selector : Selector
        Has the rule choose.
    base : Strategy
        Must take a mean where the rule chooses for each layer.
    options : CheckedOptions
        How many summaries are enough, and what to do with fewer.
    """

    def __init__(
        self, rule: SelectionRule, selector: Selector, base: Strategy, options: CheckedOptions
    ) -> None:
        self._rule = rule
        self._selector = selector
        self._base = base
        self._options = options

    def choose(
        self, plan: Plan, summaries: Mapping[str, Summary], history: Sequence[RoundRecord]
    ) -> Choice:
        """Choose, and note in the last record who was chosen and what is out of the ordinary.

        Raises
        ------
        NoSummariesError
            If too few summaries came, and it is plain that none will come or the option says stop.
        """
        start, record = time.monotonic(), history[-1]
        offered = [client for client in plan.now.available if client in summaries]
        if self._rule.chooses_unasked:
            asked = set(plan.candidates)
            offered += [client for client in plan.now.available if client not in asked]
        if plan.candidates and len(offered) < self._options.min_summaries:
            self._selector.note_asked(plan)
            choice = self._without_summaries(plan, len(offered), history)
        else:
            choice = self._selector.choose(plan, summaries)
            if len(choice.clients) < self._rule.num_selected:
                record.notes.append(
                    f"of the {len(plan.candidates)} clients asked, {len(offered)} answered and may "
                    f"be chosen, so {len(choice.clients)} are in place of {self._rule.num_selected}"
                )
        record.seconds["selection"] = time.monotonic() - start
        if choice.by_layer:
            check_averages(self._base)
        record.chosen = list(choice.clients)
        record.chosen_by_layer = {
            layer: sorted(clients, key=client_order) for layer, clients in choice.by_layer.items()
        }
        record.mean_similarity, record.optimal = choice.mean_similarity, choice.optimal
        return choice

    def _without_summaries(
        self, plan: Plan, answers: int, history: Sequence[RoundRecord]
    ) -> Choice:
        """Choose the longest waiting, unless it is plain that no summary will ever come."""
        record = history[-1]
        what = (
            f"{answers} of the {len(plan.candidates)} clients asked in round {plan.now.number} "
            f"sent a summary that can be used, fewer than min_summaries = "
            f"{self._options.min_summaries}"
        )
        failed = record.reasons("pre-round")
        for client, reason in list(failed.items())[:1]:
            what += f"; client {client}: {reason}"
        never = not any(earlier.answered for earlier in history)
        if never or self._options.on_too_few_summaries == "stop":
            raise NoSummariesError(what)
        record.notes.append(f"{what}. The longest waiting are chosen")
        log(WARNING, "%s. The longest waiting are chosen.", what)
        order = sorted(plan.now.available, key=lambda client: client in failed)  # stable
        chosen = order[: self._rule.num_selected]
        return Choice(tuple(sorted(chosen, key=client_order)))
