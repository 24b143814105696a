"""The training of the chosen: the base strategy's messages, and what comes back for them."""

import time
from collections.abc import Iterable

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp.strategy import Strategy

from pncs_flower.protocol import KEPT, LOST, MARKER, TICKET, TRAIN

from .. import timeouts
from ..base_strategy import named_base, same_for_all
from ..grids.exchange import content_bytes, expire, marked, message_like
from ..grids.polling import PollingGrid
from ..grids.view import GridView
from .open_round import OpenRound

__all__ = ["configure", "find_message_type", "receive", "send"]


def configure(round: OpenRound, base: Strategy, clients: Iterable[str]) -> list[Message]:
    """Have the base strategy make its training messages for these clients.

    Once in a round: a base strategy may decay a learning rate or charge a privacy budget when
    it is called, so it must not be called for the pre-round and again for training.
    """
    node_ids = list(round.nodes(clients).values())
    if not round.configured:
        return _configured(round, base, node_ids)
    # Made before the clients were known, to know the type of the messages.
    template = same_for_all(round.configured, base)
    return [message_like(template, node_id, template.content) for node_id in node_ids]


def find_message_type(round: OpenRound, base: Strategy, node_ids: list[int]) -> str:
    """Return the type of the base strategy's messages, which it makes for this round."""
    round.configured = _configured(round, base, node_ids)
    types = {message.metadata.message_type for message in round.configured}
    return min(types, default=MessageType.TRAIN)


def _configured(round: OpenRound, base: Strategy, node_ids: list[int]) -> list[Message]:
    view = GridView(round.grid, node_ids)
    with named_base("configure_train", base, round.number):
        return list(base.configure_train(round.number, round.arrays, round.config, view))


def send(round: OpenRound, templates: list[Message], seed: int) -> list[Message]:
    """Return the messages to the chosen; none without a template.

    One that keeps the update of this round's pre-round gets no weights, unless it has lost it. With
    a pre-round there is one template for all; without, a base strategy may have one for each.
    """
    chosen = round.nodes(round.record.chosen) if templates else {}
    marker: dict[str, int | str] = {"round": round.number, "seed": seed}
    if round.pre_round is None:
        template_of = {message.metadata.dst_node_id: message for message in templates}
    else:
        marker[TICKET] = round.pre_round.ticket
        template_of = dict.fromkeys(chosen.values(), templates[0])
    contents = {id(m): marked(m.content, TRAIN, marker) for m in template_of.values()}
    round.whole = {
        client: message_like(template_of[node_id], node_id, contents[id(template_of[node_id])])
        for client, node_id in chosen.items()
        if node_id in template_of
    }
    round.sent = dict(round.whole)
    if round.pre_round is not None and round.pre_round.keeps_update:
        bare = marked(RecordDict(), TRAIN, {**marker, KEPT: True})
        for client, node_id in chosen.items():
            if client in round.summaries:
                round.sent[client] = message_like(template_of[node_id], node_id, bare)
    _note_sent(round, round.sent.values(), round.timeout)
    round.sent_at = time.monotonic()
    return list(round.sent.values())


def receive(round: OpenRound, replies: Iterable[Message]) -> list[Message]:
    """Return all replies, also of clients that had lost their update and are asked again.

    Only a client that was told to send the update it kept can have lost it.
    """
    received = list(replies)
    if isinstance(round.grid, PollingGrid):  # a wrapper around the strategy has its own loop
        round.grid.check_workers(received)
    lost = {
        reply.metadata.reply_to_message_id
        for reply in received
        if reply.has_content()
        and reply.content.config_records.get(MARKER, ConfigRecord()).get(LOST)
    }
    again = {
        client: round.whole[client]
        for client, message in round.sent.items()
        if message.metadata.message_id in lost and message is not round.whole[client]
    }
    left = None
    if round.timeout is not None:  # one time limit for all of a round's training
        left = round.timeout - (time.monotonic() - round.sent_at)
    if again and left is not None and left <= 0:
        round.record.notes.append(f"{', '.join(again)} had lost the update when the time was up")
    elif again:
        round.sent |= again
        _note_sent(round, again.values(), left)
        round.record.notes.append(f"{', '.join(again)} had lost the update and trained again")
        received += round.grid.send_and_receive(
            list(again.values()), timeout=timeouts.TRAINING if left is None else left
        )
    round.record.seconds["training"] = time.monotonic() - round.sent_at
    return received


def _note_sent(round: OpenRound, messages: Iterable[Message], timeout: float | None) -> None:
    """Note the bytes of messages, and let them expire if the time for their replies is known."""
    messages = list(messages)
    down = round.record.bytes_down
    down["training"] = down.get("training", 0) + sum(content_bytes(m.content) for m in messages)
    if timeout is not None:
        expire(messages, timeout)
