"""The training of the chosen clients: the messages that ask them for their full updates."""

import time
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from pncs_flower.protocol import KEPT, LOST, MARKER, TRAIN

from ..grids.exchange import content_bytes, expire, marked, message_like
from ..grids.polling import PollingGrid
from ..record import RoundRecord
from ..replies.updates import Delivery, SketchCheck, UpdateChecks
from .selector import Plan

__all__ = ["TIMEOUT", "Training", "TrainingMessages"]

TIMEOUT = 600.0
"""Seconds for training, unless another time is given."""

Marker = Mapping[str, int | str]


@dataclass(frozen=True)
class TrainingMessages:
    """What is sent to the chosen, and what to those that have lost their update meanwhile.

    Attributes
    ----------
    first : dict of str to Message
        One for each chosen client. One that keeps the update of this round's pre-round gets no
        weights.
    whole : dict of str to Message
        The same with the weights, for every client.
    """

    first: dict[str, Message]
    whole: dict[str, Message]

    @classmethod
    def after_pre_round(
        cls, template: Message, chosen: Mapping[str, int], keeping: Container[str], marker: Marker
    ) -> "TrainingMessages":
        """Make them from the one message that the pre-round was held with.

        Parameters
        ----------
        template : Message
            The base strategy's.
        chosen : mapping of str to int
            Node ids of the chosen clients, by key.
        keeping : container of str
            Clients that keep their update.
        marker : mapping of str to int or str
            The round, the seed and the ticket of the pre-round.
        """
        content = marked(template.content, TRAIN, marker)
        bare = marked(RecordDict(), TRAIN, {**marker, KEPT: True})
        whole = {c: message_like(template, node_id, content) for c, node_id in chosen.items()}
        first = {
            client: message_like(template, node_id, bare) if client in keeping else whole[client]
            for client, node_id in chosen.items()
        }
        return cls(first, whole)

    @classmethod
    def without_pre_round(
        cls, templates: Sequence[Message], chosen: Mapping[str, int], marker: Marker
    ) -> "TrainingMessages":
        """Make them from the base strategy's own, of which it may have another for each client."""
        by_node = {message.metadata.dst_node_id: message for message in templates}
        whole = {
            client: message_like(
                by_node[node_id], node_id, marked(by_node[node_id].content, TRAIN, marker)
            )
            for client, node_id in chosen.items()
            if node_id in by_node
        }
        return cls(whole, whole)


@dataclass
class Training:
    """What one round's training leaves from the messages sent to the replies.

    Attributes
    ----------
    messages : TrainingMessages
        Those to the chosen; none if the base strategy does not train in this round.
    plan : Plan
        The round's plan.
    checks : UpdateChecks
        What an update must be.
    sketches : SketchCheck or None
        What the updates are compared with, if they are.
    grid : Grid
        The grid.
    timeout : float or None
        Seconds for the replies, if they are known: a wrapper around the strategy has a loop of its
        own.
    """

    messages: TrainingMessages
    plan: Plan
    checks: UpdateChecks
    sketches: SketchCheck | None
    grid: Grid
    timeout: float | None
    sent: dict[str, Message] = field(init=False)
    start: float = field(init=False)

    def send(self, record: RoundRecord) -> list[Message]:
        """Return the messages to send, and note their bytes."""
        self.sent = dict(self.messages.first)
        record.bytes_down["training"] = sum(content_bytes(m.content) for m in self.sent.values())
        if self.timeout is not None:
            expire(self.sent.values(), self.timeout)
        self.start = time.monotonic()
        return list(self.sent.values())

    def complete(self, replies: Iterable[Message], record: RoundRecord) -> list[Message]:
        """Return all replies, also of clients that had lost their update and are asked again.

        Only a client that was told to send the update it kept can have lost it.
        """
        received = list(replies)
        if isinstance(self.grid, PollingGrid):  # a wrapper around the strategy has its own loop
            self.grid.check_workers(received)
        lost = {
            reply.metadata.reply_to_message_id
            for reply in received
            if reply.has_content()
            and reply.content.config_records.get(MARKER, ConfigRecord()).get(LOST)
        }
        again = {
            client: self.messages.whole[client]
            for client, message in self.sent.items()
            if message.metadata.message_id in lost and message is not self.messages.whole[client]
        }
        left = None
        if self.timeout is not None:  # one time limit for all of a round's training
            left = self.timeout - (time.monotonic() - self.start)
        if again and left is not None and left <= 0:
            record.notes.append(f"{', '.join(again)} had lost the update when the time was up")
        elif again:
            self.sent |= again
            if left is not None:
                expire(again.values(), left)
            record.bytes_down["training"] += sum(content_bytes(m.content) for m in again.values())
            record.notes.append(f"{', '.join(again)} had lost the update and trained again")
            received += self.grid.send_and_receive(
                list(again.values()), timeout=TIMEOUT if left is None else left
            )
        record.seconds["training"] = time.monotonic() - self.start
        return received

    def sort_out(self, received: list[Message], record: RoundRecord) -> Delivery:
        """Sort out the replies; see `UpdateChecks.sort_out`."""
        return self.checks.sort_out(self.sent, received, record, self.sketches)
