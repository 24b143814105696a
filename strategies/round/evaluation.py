"""A round's evaluation: the base strategy's, on the clients that take part, in their order."""

from collections.abc import Iterable
from logging import INFO, WARNING

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.common import log

from pncs_flower.plain_text import plain_reason, shortened

from ..base_strategy import evaluates, least_evaluating, named_base
from ..grids.exchange import expire
from ..grids.view import GridView
from ..replies.metrics import ReplyMetrics
from .open_round import OpenRound

_NAMED = 3  # clients in a note


def configure(round: OpenRound, arrays: ArrayRecord, config: ConfigRecord) -> None:
    """Make the messages; none if too few clients take part, as the base would wait for more."""
    clients, least = round.clients, least_evaluating(round.base)
    if round.clock is not None:
        clients, least = round.clock.still_there(clients), max(least, round.clock.num_selected)
        if len(clients) < least and evaluates(round.base):
            round.record.notes.append("too few clients are there for an evaluation: there is none")
    if len(clients) >= least:
        view = GridView(round.grid, clients.values())
        with named_base("configure_evaluate", round.base, round.number):
            messages = round.base.configure_evaluate(round.number, arrays, config, view)
            round.evaluating = list(messages)
    if round.timeout is not None:  # else a wrapper's loop knows it
        expire(round.evaluating, round.timeout)


def aggregate(
    round: OpenRound, replies: Iterable[Message], common: ReplyMetrics
) -> MetricRecord | None:
    """Have the base strategy aggregate the replies that it can, sorted by client."""
    # None if nothing was asked, or nothing can be used.
    sound: dict[str, Message] = {}
    reasons: list[str] = []
    for client, reply in _in_order(round, replies).items():
        if reply.has_error():
            reasons.append(f"{client}: {plain_reason(reply.error.reason)}")
            continue
        try:
            common.check(reply.content)
        except ValueError as error:
            reasons.append(f"{client}: {shortened(str(error))}")
        else:
            sound[client] = reply
    notes = round.record.notes
    if reasons:
        more = f"; and {len(reasons) - _NAMED} others" if len(reasons) > _NAMED else ""
        notes.append(f"evaluation: left out are {'; '.join(reasons[:_NAMED])}{more}")
        there_is = "" if sound else ", and so there is none"
        log(INFO if sound else WARNING, "Round %d, %s%s", round.number, notes[-1], there_is)
    notes += common.unify({client: reply.content for client, reply in sound.items()})
    if reasons and not sound:
        notes.append("no client's evaluation can be used: there is none")
        return None
    with named_base("aggregate_evaluate", round.base, round.number):
        return round.base.aggregate_evaluate(round.number, list(sound.values()))


def _in_order(round: OpenRound, replies: Iterable[Message]) -> dict[str, Message]:
    """Return the first reply of each client, in the order of clients."""
    first = {reply.metadata.reply_to_message_id: reply for reply in reversed(list(replies))}
    # Only now, for a message has no id before it is sent.
    ids = {m.metadata.dst_node_id: m.metadata.message_id for m in round.evaluating}
    found = {node_id: first[sent] for node_id, sent in ids.items() if sent in first}
    return {client: found[node_id] for client, node_id in round.clients.items() if node_id in found}
