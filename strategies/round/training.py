"""The training of the chosen: the base strategy's messages, what comes back, and the new model."""

import time
from collections.abc import Iterable, Sequence

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict

from pncs_flower.plain_text import counted
from pncs_flower.protocol import KEPT, LOST, MARKER, TICKET, TRAIN

from .. import timeouts
from ..base_strategy import named_base, same_for_all
from ..errors import EmptyRoundsError
from ..grids.exchange import content_bytes, expire, marked, message_like
from ..grids.polling import PollingGrid
from ..grids.view import GridView
from ..record import RoundRecord
from ..replies.aggregation import aggregate, share_layers
from ..replies.updates import SketchCheck, UpdateChecks
from .combining import Combiner
from .open_round import OpenRound


def configure(round: OpenRound, node_ids: Iterable[int]) -> list[Message]:
    """Have the base strategy make its training messages for these nodes."""
    # Once in a round: a base strategy may decay a learning rate or charge a privacy budget when
    # it is called, so it must not be called for the pre-round and again for training.
    if not round.configured:
        view = GridView(round.grid, node_ids)
        with named_base("configure_train", round.base, round.number):
            messages = round.base.configure_train(round.number, round.arrays, round.config, view)
            round.configured = list(messages)
        return round.configured
    # Made before the clients were known, to know the type of the messages.
    template = same_for_all(round.configured, round.base)
    return [message_like(template, node_id, template.content) for node_id in node_ids]


def find_message_type(round: OpenRound, node_ids: list[int]) -> str:
    """Return the type of the base strategy's messages, which it makes for this round."""
    types = {message.metadata.message_type for message in configure(round, node_ids)}
    return min(types, default=MessageType.TRAIN)


def send(round: OpenRound, templates: list[Message]) -> list[Message]:
    """Return the messages to the chosen; none without a template."""
    # One that keeps the update of this round's pre-round gets no weights, unless it has lost it.
    # With a pre-round there is one template for all; without, a base strategy may have one for
    # each.
    before = round.pre_round
    marker: dict[str, int | str] = {"round": round.number, "seed": round.options.seed}
    marker |= {} if before is None else {TICKET: before.ticket}
    bare = marked(RecordDict(), TRAIN, {**marker, KEPT: True})
    template_of = {message.metadata.dst_node_id: message for message in templates}
    contents: dict[int, RecordDict] = {}  # marked; most base strategies have one for all
    for client, node_id in round.nodes(round.record.chosen if templates else ()).items():
        template = template_of.get(node_id) if before is None else templates[0]
        if template is None:
            continue
        given = template.content
        if id(given) not in contents:
            contents[id(given)] = marked(given, TRAIN, marker)
        whole = message_like(template, node_id, contents[id(given)].copy())
        round.whole[client] = round.sent[client] = whole
        if before is not None and before.keeps_update and client in before.summaries:
            round.sent[client] = message_like(template, node_id, bare.copy())
    _note_sent(round, round.sent.values(), round.timeout)
    round.sent_at = time.monotonic()
    return list(round.sent.values())


def receive(round: OpenRound, replies: Iterable[Message]) -> list[Message]:
    """Return all replies, also of clients that had lost their update and are asked again."""
    # Only a client that was told to send the update it kept can have lost it.
    received, grid = list(replies), round.grid
    arrived: dict[str, float] = {}
    if isinstance(grid, PollingGrid):  # a wrapper around the strategy has its own loop
        grid.check_workers(received)
        arrived |= {} if grid.simulated else grid.arrived
    lost = {
        reply.metadata.reply_to_message_id
        for reply in received
        if reply.has_content() and _has_lost(reply.content)
    }
    first = dict(round.sent)
    again = {
        client: round.whole[client]
        for client, message in round.sent.items()
        if message.metadata.message_id in lost and message is not round.whole[client]
    }
    spent = time.monotonic() - round.sent_at  # one time limit for all of a round's training
    left = None if round.timeout is None else round.timeout - spent
    if again and left is not None and left <= 0:
        round.record.notes.append(f"{', '.join(again)} had lost the update when the time was up")
    elif again:
        round.sent |= again
        _note_sent(round, again.values(), left)
        round.record.notes.append(f"{', '.join(again)} had lost the update and trained again")
        timeout = timeouts.TRAINING if left is None else left
        received += grid.send_and_receive(list(again.values()), timeout=timeout)
    round.record.seconds["training"] = time.monotonic() - round.sent_at
    if round.clock is not None:
        return round.clock.end_training(round, [*first.items(), *again.items()], received)
    if isinstance(grid, PollingGrid) and not grid.simulated:
        arrived |= grid.arrived if again else {}
    round.took = {
        client: arrived[message.metadata.message_id] - round.sent_at
        for client, message in round.sent.items()
        if message.metadata.message_id in arrived
    }
    return received


def _has_lost(content: RecordDict) -> bool:
    """Tell whether a client says that it has lost the update that it was to keep."""
    marker = content.get(MARKER)
    return isinstance(marker, ConfigRecord) and bool(marker.get(LOST))


def _note_sent(round: OpenRound, messages: Iterable[Message], timeout: float | None) -> None:
    """Note the bytes of messages, and let them expire if the time for their replies is known."""
    messages = list(messages)
    down = round.record.bytes_down
    down["training"] = down.get("training", 0) + sum(content_bytes(m.content) for m in messages)
    if timeout is not None:
        expire(messages, timeout)


def close(
    round: OpenRound, received: list[Message], checks: UpdateChecks, combiner: Combiner
) -> tuple[ArrayRecord | None, MetricRecord | None]:
    """Drop the updates that cannot be used, and have the base strategy aggregate the others."""
    record, options, before, sketches = round.record, round.options, round.pre_round, None
    if combiner.verifies and before is not None and before.keeps_update:
        sent = before.summaries, before.sketches
        sketches = SketchCheck(before.request, *sent, options.seed, round.number)
    updates, round.used, round.liars = checks.sort_out(
        round.model, round.sent, received, record, sketches
    )
    round.sound = list(updates)
    if 0 < len(updates) < options.min_updates:
        record.notes.append(
            f"{counted(len(updates), 'update is', 'updates are')} fewer than min_updates = "
            f"{options.min_updates}, so nothing is used"
        )
        record.delivered.clear()
        updates, round.used = {}, {}
    contents = {client: message.content for client, message in updates.items()}
    weights = checks.metrics.weights(contents)
    record.notes += share_layers(contents, record.chosen_by_layer, round.model.weights, weights)
    combined = combiner.combine(round, contents, weights)
    arrays, metrics, problem = aggregate(
        round.base, round.number, list(updates.values()), round.model
    )
    if problem is not None:
        record.notes.append(problem)
        round.sound, round.used = [], {}  # one of these is to blame, so all of them step back
    elif arrays is not None:
        combiner.keep(round, combined, weights)
    if arrays is None:
        record.notes.append("no new model came out of this round: the last one is kept")
    return arrays, metrics


def stop_after_empty_rounds(history: Sequence[RoundRecord], most: int) -> None:
    """Raise `EmptyRoundsError` if this was the last of too many in a row without an update."""
    last = history[-most:]
    if len(last) < most or any(record.delivered for record in last):
        return
    reasons = [f"{who}: {why}" for who, why in last[-1].reasons("training").items()]
    if not reasons:
        reasons = last[-1].notes if last[-1].chosen else ["no client was asked to train"]
    untried = set(last[-1].clients).difference(*(record.chosen for record in last))
    raise EmptyRoundsError(
        f"no client delivered an update in {counted(len(last), 'round')} in a row. In round "
        f"{last[-1].round}: {'; '.join(reasons[:3])}. "
        f"{len(untried)} of {counted(len(last[-1].clients), 'client')} not chosen in these "
        "rounds: a strategy made with a larger max_empty_rounds would have tried more"
    )
