"""An exchange of messages in simulated time, and its replies as a server would have them."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from flwr.app import Error, Message
from flwr.common.constant import ErrorCode

from pncs_flower.devices.timing import Outcome, Task
from pncs_flower.messages.records import make_message
from pncs_flower.protocol import client_order

from ..record import RoundRecord

_LATE = "late"  # in a record's bytes
_DIGITS = 6  # of a second, in a timeline


@dataclass
class Exchange:
    """Messages that were sent at one time, what each made its client do, and what came of it."""

    start: float  # simulated seconds since the run began; those of outcomes are from here on
    messages: list[Message] = field(default_factory=list)
    tasks: list[Task] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)

    @property
    def last(self) -> dict[str, Outcome]:
        """What came of each client's last message."""
        return {t.client: each for t, each in zip(self.tasks, self.outcomes, strict=True)}

    def part(self, ids: Collection[int]) -> "Exchange":
        """Return the part of some messages, by what `id` says of them."""
        places = [place for place, message in enumerate(self.messages) if id(message) in ids]
        return Exchange(
            self.start,
            [self.messages[place] for place in places],
            [self.tasks[place] for place in places],
            [self.outcomes[place] for place in places],
        )

    def lost(self) -> dict[str, str]:
        """Return why clients' last replies do not count."""
        return {client: each.problem for client, each in self.last.items() if each.problem}

    def spans(self) -> dict[str, list[float]]:
        """Return when each client did what, from its first message to its last reply."""
        spans: dict[str, list[float]] = {}
        for task, outcome in zip(self.tasks, self.outcomes, strict=True):
            span = [round(seconds, _DIGITS) for seconds in outcome.span.after(self.start)]
            spans[task.client] = [*spans.get(task.client, span)[:1], *span[1:]]
        return spans

    def note(self, record: RoundRecord, phase: str) -> None:
        """Put into a round's timeline who did what."""
        note_spans(record, phase, self.spans())

    def counted(self, record: RoundRecord, received: Iterable[Message]) -> list[Message]:
        """Return replies, with an error for each that does not count, and note wasted bytes."""
        problems: dict[str, str] = {}
        for message, task, outcome in zip(self.messages, self.tasks, self.outcomes, strict=True):
            if outcome.problem:
                problems[message.metadata.message_id] = outcome.problem
            if outcome.late and task.bytes_up:
                record.bytes_up[_LATE] = record.bytes_up.get(_LATE, 0) + task.bytes_up
        return with_errors(received, problems)


def note_spans(record: RoundRecord, phase: str, spans: Mapping[str, list[float]]) -> None:
    """Put into a round's timeline when each client did what in a phase."""
    for client, span in spans.items():
        record.timeline.setdefault(client, {})[phase] = span
    # Flower draws the order of those that it evaluates on at random.
    order = sorted(record.timeline, key=client_order)
    record.timeline = {client: record.timeline[client] for client in order}


def with_errors(received: Iterable[Message], problems: Mapping[str, str]) -> list[Message]:
    """Return replies, with an error in place of each that would not have come, or too late."""
    result = []
    for reply in received:
        problem = problems.get(reply.metadata.reply_to_message_id)
        if problem is not None:
            reply = make_message(reply.metadata, Error(ErrorCode.NODE_UNAVAILABLE, problem))
        result.append(reply)
    return result
