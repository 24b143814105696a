"""The pre-round that rides along: next round's summaries, asked for with this round's evaluation.

After aggregation, Flower sends the new weights out for evaluation anyway. In a deployment each
exchange costs seconds of polling, so a pre-round in that same exchange costs none.

The base strategy has not configured the next round yet, and must not be asked before its time, so
its message is guessed: the last one, with the new weights and the next round's number. When the
round comes and the real message is another one, the answers are of no use, and a pre-round of its
own is held.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

from ..grids.exchange import Replies, content_bytes, sort_replies
from ..record import RoundRecord
from .pre_round import PreRound

__all__ = ["OTHER_CLIENTS", "Ahead", "guess_next_content"]

OTHER_CLIENTS = "other clients take part than were asked"
"""Why answers are of no use where clients came or went: the guess at the message may be right."""

_ROUND = "server-round"


def guess_next_content(
    content: RecordDict, before: ArrayRecord, after: ArrayRecord
) -> RecordDict | None:
    """Return what a training message will hold in the next round, if all goes as usual.

    Parameters
    ----------
    content : RecordDict
        What it held in this round.
    before, after : ArrayRecord
        The model in this round and in the next.

    Returns
    -------
    RecordDict or None
        None if the model is not among the records as it is.
    """
    if sum(record == before for record in content.array_records.values()) != 1:
        return None
    following = RecordDict()
    for name, record in content.items():
        if isinstance(record, ArrayRecord) and record == before:
            following[name] = after
        elif isinstance(record, ConfigRecord) and isinstance(record.get(_ROUND), int):
            following[name] = ConfigRecord({**record, _ROUND: int(str(record[_ROUND])) + 1})
        else:
            following[name] = record
    return following


@dataclass
class Ahead:
    """A pre-round that is under way before its round.

    Attributes
    ----------
    record : RoundRecord
        Of the round to come: who was asked, who answered, bytes.
    pre_round : PreRound
        What is asked for.
    content : RecordDict
        The content of the training message that the answers rest on.
    candidates : mapping of str to int
        Node ids of the clients asked, by key.
    messages : list of Message
        The requests.
    summaries : dict of str to dict of str to np.ndarray
        The answers, once they are in.
    """

    record: RoundRecord
    pre_round: PreRound
    content: RecordDict
    candidates: Mapping[str, int]
    messages: list[Message] = field(default_factory=list)
    summaries: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)

    @classmethod
    def ask(
        cls,
        pre_round: PreRound,
        template: Message,
        content: RecordDict,
        candidates: Mapping[str, int],
        round: int,
    ) -> "Ahead":
        """Make the requests of a round to come."""
        ahead = cls(RoundRecord(round), pre_round, content, candidates)
        guessed = Message(content, 0, template.metadata.message_type)
        ahead.messages = pre_round.messages(guessed, candidates, round)
        return ahead

    def take(self, replies: Iterable[Message]) -> list[Message]:
        """Take the answers out of the replies to an exchange, and return the others."""
        own = {message.metadata.message_id for message in self.messages}
        mine: list[Message] = []
        others: list[Message] = []
        for reply in replies:
            (mine if reply.metadata.reply_to_message_id in own else others).append(reply)
        sorted_replies: Replies = sort_replies(self.messages, mine, "no reply in time")
        self.summaries = self.pre_round.read(sorted_replies, self.candidates, self.record)
        self.record.bytes_down["pre-round"] = sum(content_bytes(m.content) for m in self.messages)
        return others

    def misfit(
        self, round: int, content: RecordDict, candidates: Mapping[str, int], least: int
    ) -> str | None:
        """Return why the answers are of no use to a round, or None if they are.

        Parameters
        ----------
        round : int
            The round.
        content : RecordDict
            The content of the base strategy's training message in it.
        candidates : mapping of str to int
            Whom the rule wants asked.
        least : int
            How many answers are enough.
        """
        if round != self.record.round or dict(candidates) != dict(self.candidates):
            return OTHER_CLIENTS
        if content != self.content:
            return "the base strategy sends another message than was expected"
        if len(self.summaries) < least:
            return f"only {len(self.summaries)} answered"
        return None

    def discard(self, record: RoundRecord) -> None:
        """Note in the round's record what was asked in vain."""
        record.bytes_down["pre-round unused"] = self.record.bytes_down["pre-round"]
        record.bytes_up["pre-round unused"] = self.record.bytes_up["pre-round"]

    def hand_over(self, record: RoundRecord) -> dict[str, dict[str, np.ndarray]]:
        """Return the answers, and note in the round's record what they cost."""
        record.asked, record.answered = self.record.asked, self.record.answered
        record.rejected |= self.record.rejected
        record.notes += self.record.notes
        record.bytes_down |= self.record.bytes_down
        record.bytes_up |= self.record.bytes_up
        record.seconds["pre-round"] = 0.0
        return self.summaries
