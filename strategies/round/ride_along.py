"""Whether a round's summaries are asked for ahead, and whether the answers are used."""

from collections.abc import Iterable, Mapping
from logging import INFO

from flwr.app import ArrayRecord, Message
from flwr.common import log

from ..record import RoundRecord
from ..rule import Summary
from .ahead import OTHER_CLIENTS, Ahead, guess_next_content
from .pre_round import PreRound

__all__ = ["RideAlong"]

# A base strategy whose next message cannot be guessed has clients train in vain, so after some
# misfits in a row, guesses are made after 1, 2, 4, ... and at last so many rounds.
_LONGEST_REST = 16


class RideAlong:
    """What one round leaves for the next, where the pre-round rides along with the evaluation.

    Attributes
    ----------
    last_round : int
        The last round of the run: none is asked for beyond; 0, and none ever, until it is known.
    """

    def __init__(self) -> None:
        self.last_round = 0
        self._sent: tuple[Message, ArrayRecord] | None = None
        self._ahead: Ahead | None = None
        self._misfits = 0
        self._next_try = 0
        self._told = False

    def note(self, template: Message, arrays: ArrayRecord) -> None:
        """Remember a round's training message and its model, to guess the next from."""
        self._sent = template, arrays

    def may_ask(self, number: int) -> bool:
        """Tell whether a round's summaries may be asked for ahead."""
        return self._sent is not None and self._next_try <= number <= self.last_round

    def requests(
        self, pre_round: PreRound, arrays: ArrayRecord, candidates: Mapping[str, int], number: int
    ) -> list[Message]:
        """Make the requests for a round to come; none if its message cannot be guessed.

        Parameters
        ----------
        pre_round : PreRound
            What is asked for.
        arrays : ArrayRecord
            The model of the round to come.
        candidates : mapping of str to int
            Node ids of the clients to ask, by key.
        number : int
            The round to come.
        """
        if self._sent is None:
            return []
        template, before = self._sent
        content = guess_next_content(template.content, before, arrays)
        if content is None:
            return []
        self._ahead = Ahead.ask(pre_round, template, content, candidates, number)
        return self._ahead.messages

    def sort_out(self, replies: Iterable[Message]) -> Iterable[Message]:
        """Take the answers out of the replies to an evaluation, and return the others."""
        return replies if self._ahead is None else self._ahead.take(replies)

    def answers(
        self, template: Message, candidates: Mapping[str, int], least: int, record: RoundRecord
    ) -> tuple[Mapping[str, Summary], str] | None:
        """Return the answers if they fit the round that has come; its record says so, or why not.

        With them comes the ticket of their pre-round.

        Parameters
        ----------
        template : Message
            The base strategy's training message.
        candidates : mapping of str to int
            Whom the rule wants asked.
        least : int
            How many answers are enough.
        record : RoundRecord
            Of the round.
        """
        ahead, self._ahead = self._ahead, None
        if ahead is None:
            record.pre_round = "own"
            return None
        misfit = ahead.misfit(record.round, template.content, candidates, least)
        if misfit is None:
            self._misfits, record.pre_round = 0, "ahead"
            return ahead.hand_over(record), ahead.pre_round.ticket
        if misfit != OTHER_CLIENTS:
            self._rest(misfit, record.round)
        ahead.discard(record)
        record.pre_round = f"own: {misfit}"
        return None

    def _rest(self, misfit: str, number: int) -> None:
        """Make the next guess after 1, 2, 4, ... rounds, the more misfits there were in a row."""
        self._misfits += 1
        self._next_try = number + min(2 ** (self._misfits - 1), _LONGEST_REST)
        if self._misfits > 1 and not self._told:
            self._told = True
            log(
                INFO,
                "Round %d: summaries asked for ahead were of no use (%s). They are asked for "
                "ahead again after 2, 4, ... and at most %d rounds, until they are.",
                number,
                misfit,
                _LONGEST_REST,
            )
