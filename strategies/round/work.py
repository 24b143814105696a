"""What a message makes a client do: the bytes both ways, and the examples that it goes through."""

import math
from logging import WARNING

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common import log

from pncs_flower.devices.timing import Task
from pncs_flower.messages.joint import part
from pncs_flower.messages.records import of_kind
from pncs_flower.protocol import EXAMPLES_PROCESSED, NUM_EXAMPLES, SummaryRequest

from ..grids.exchange import content_bytes
from ..replies.metrics import numbers
from .open_round import OpenRound
from .pre_round import PreRound
from .roster import Roster

PRE_ROUND, TRAINING, EVALUATION = "pre-round", "training", "evaluation"

# Of what training on an example takes: the share of a pass without gradients.
_FORWARD = 1 / 3
_EPOCHS = ("local-epochs", "local_epochs", "epochs")
_MOST = 1e18


class Work:
    """Tells what clients do, by what they said of themselves and what their replies say."""

    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        self._told = False

    def task(
        self,
        round: OpenRound,
        client: str,
        message: Message,
        reply: Message | None,
        phase: str,
        asked: PreRound | None = None,
    ) -> Task:
        """Return what a client does for a message; ``asked`` is for what, if for a summary."""
        examples, number = 0.0, round.number
        content = reply.content if reply is not None and reply.has_content() else RecordDict()
        joint = phase == EVALUATION and asked is not None
        if phase == EVALUATION:
            evaluated = part(content)[1] if joint else content
            examples += _FORWARD * self._evaluated(round, client, evaluated)
        if phase == TRAINING:
            examples += self._trained_now(round, client, message, content)
        if asked is not None:
            phase, number = PRE_ROUND, asked.number
            examples += self._summarized(round, client, message.content, asked.request)
        return Task(
            client,
            content_bytes(_once(message.content) if joint else message.content),
            examples,
            content_bytes(content),
            (number, phase),
        )

    def _trained_now(
        self, round: OpenRound, client: str, message: Message, content: RecordDict
    ) -> float:
        if message is not round.whole.get(client):
            return 0.0  # the update has been there since the pre-round, or was lost
        told = numbers(content)
        if _is_number(told.get(EXAMPLES_PROCESSED)):
            return float(told[EXAMPLES_PROCESSED])
        return self._trained(round, client, message.content, told.get(NUM_EXAMPLES))

    def _trained(
        self, round: OpenRound, client: str, asked: RecordDict, size: float | None = None
    ) -> float:
        """Return the examples that a client goes through when it trains."""
        introduction = self._roster.clients.get(client)
        epochs = introduction.epochs if introduction is not None else None
        if not _is_number(size):
            size = self._size(round, client)
        return float(size or 0.0) * (_epochs_in(asked) if epochs is None else epochs)

    def _summarized(
        self, round: OpenRound, client: str, asked: RecordDict, request: SummaryRequest
    ) -> float:
        if request.kind == "update":
            return self._trained(round, client, asked)
        size = self._size(round, client)
        if request.kind == "gradient":
            return size
        return _FORWARD * min(size, request.max_examples or size)

    def _evaluated(self, round: OpenRound, client: str, content: RecordDict) -> float:
        told = numbers(content)
        for name in (EXAMPLES_PROCESSED, NUM_EXAMPLES):
            if _is_number(told.get(name)):
                return float(told[name])
        return self._size(round, client)

    def _size(self, round: OpenRound, client: str) -> float:
        """Return how many examples a client has: as it says, or as it said, or as others have."""
        introduction = self._roster.clients.get(client)
        if introduction is not None and introduction.num_examples is not None:
            return float(introduction.num_examples)
        known = dict(round.plan.now.num_examples)
        known |= {c: told[NUM_EXAMPLES] for c, told in round.used.items() if NUM_EXAMPLES in told}
        known = {other: size for other, size in known.items() if _is_number(size)}
        if client in known:
            return float(known[client])
        if known:
            return math.fsum(known.values()) / len(known)  # whatever their order
        if not self._told:
            self._told = True
            note = (
                "nobody has said yet how many examples it has, so computing before the first "
                "update counts as no simulated time: give SummaryMod num_examples="
            )
            round.record.notes.append(note)
            log(WARNING, "Round %d: %s", round.number, note)
        return 0.0


def _once(content: RecordDict) -> RecordDict:
    """Return a content with each array record once: what two messages in one share is sent once."""
    seen: dict[int, str] = {}
    for name, record in content.items():
        seen.setdefault(id(record), name)
    return RecordDict({name: content[name] for name in seen.values()})


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and 0 <= value < _MOST


def _epochs_in(content: RecordDict) -> float:
    """Return the local epochs that a training message asks for; 1 if it does not say."""
    for config in of_kind(content, ConfigRecord).values():
        for name in _EPOCHS:
            value = config.get(name)
            if _is_number(value) and not isinstance(value, bool):
                return float(value)  # type: ignore[arg-type]
    return 1.0
