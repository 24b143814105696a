"""The pre-rounds of a run: each in an exchange of its own, or ahead with an evaluation."""

from collections.abc import Iterable, Mapping

from flwr.app import ArrayRecord, Message
from flwr.serverapp import Grid

from ..options import CheckedOptions
from ..record import RoundRecord
from ..rule import SelectionRule, Summary
from .pre_round import PreRound
from .ride_along import RideAlong
from .selector import Selector

__all__ = ["Asking"]


class Asking:
    """Asks clients for what a rule wants to know of them.

    Parameters
    ----------
    rule : SelectionRule
        Says what is asked for.
    selector : Selector
        Says whom a round to come will ask.
    options : CheckedOptions
        How long to wait, how much an answer may take, and whether to ask ahead.

    Attributes
    ----------
    ticket : str
        Of the pre-round that the last summaries come from.
    """

    def __init__(self, rule: SelectionRule, selector: Selector, options: CheckedOptions) -> None:
        self._rule = rule
        self._selector = selector
        self._options = options
        self._ride_along = RideAlong()
        self.ticket = ""

    def expect(self, last_round: int) -> None:
        """Take note of the run's last round: without it, nobody is asked ahead."""
        self._ride_along.last_round = last_round

    def pre_round(self, arrays: ArrayRecord) -> PreRound | None:
        """Return what a model's pre-round asks for; None if the rule asks for nothing.

        Raises
        ------
        ValueError
            If the rule asks for a layer that the model does not have, or for too large a summary.
        """
        if self._rule.request is None:
            return None
        options = self._options
        return PreRound.for_model(
            self._rule.request,
            arrays,
            options.seed,
            options.summary_timeout,
            options.max_summary_bytes,
        )

    def summaries(
        self,
        grid: Grid,
        pre_round: PreRound,
        template: Message,
        arrays: ArrayRecord,
        candidates: Mapping[str, int],
        record: RoundRecord,
    ) -> Mapping[str, Summary]:
        """Take the summaries that came with the last evaluation, if they fit, or ask for them.

        Parameters
        ----------
        grid : Grid
            The grid.
        pre_round : PreRound
            What is asked for.
        template : Message
            The base strategy's training message.
        arrays : ArrayRecord
            The model.
        candidates : mapping of str to int
            Node ids of the clients to ask, by key.
        record : RoundRecord
            Takes who was asked and how, who answered, bytes and seconds.
        """
        least = max(self._options.min_summaries, min(self._rule.num_selected, len(candidates)))
        ahead = self._ride_along.answers(template, candidates, least, record)
        if ahead is not None:
            found, self.ticket = ahead
        else:
            found = pre_round.ask(grid, template, candidates, record)
            self.ticket = pre_round.ticket
        self._ride_along.note(template, arrays)
        return found

    def ask_ahead(
        self, number: int, arrays: ArrayRecord, clients: Mapping[str, int]
    ) -> list[Message]:
        """Ask for the summaries of a round to come, if that round will come and can be guessed."""
        if not self._options.ride_along or not self._ride_along.may_ask(number):
            return []
        pre_round = self.pre_round(arrays)
        plan = self._selector.plan(number, list(clients))
        if pre_round is None or not plan.candidates:
            return []
        candidates = {client: clients[client] for client in plan.candidates}
        return self._ride_along.requests(pre_round, arrays, candidates, number)

    def sort_out(self, replies: Iterable[Message]) -> Iterable[Message]:
        """Take the answers out of the replies to an evaluation, and return the others."""
        return self._ride_along.sort_out(replies)
