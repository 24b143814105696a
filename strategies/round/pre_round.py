"""What candidates are asked for in a pre-round, and what of their answers can be used."""

import math
import secrets
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from logging import INFO

import numpy as np
from flwr.app import ArrayRecord, Message, MessageType, RecordDict
from flwr.common import log
from flwr.serverapp import Grid

from pncs_flower.layers import ALL_LAYERS
from pncs_flower.plain_text import first_of, shortened
from pncs_flower.protocol import SUMMARIZE, SUMMARY, TICKET, WHOLE, SummaryRequest

from ..grids.exchange import content_bytes, marked, message_like, sort_replies
from ..options import SelectionOptions
from ..record import RoundRecord
from ..replies.summaries import SummaryDecoder, decode_loss

_NAMED = 5  # clients in a note
_LOSS_BYTES = 16  # a loss and a number of examples


@dataclass
class PreRound:
    """A round's pre-round, which may be under way before its round."""

    number: int
    request: SummaryRequest  # a sketch by share of an update is fitted to the model
    decoders: dict[str, SummaryDecoder]  # by record; empty for a loss
    options: SelectionOptions
    # Names this pre-round and no other, also not one of the same round whose answers are of no
    # use. Drawn by the system: nothing is computed from it.
    ticket: str = field(default_factory=lambda: secrets.token_hex(8))
    candidates: dict[str, int] = field(default_factory=dict)  # node ids by key
    resting: Set[str] = frozenset()  # of these, who sends the combination's sketch alone
    content: RecordDict = field(default_factory=RecordDict)  # of the base's training message
    messages: list[Message] = field(default_factory=list)
    summaries: dict[str, Mapping[str, np.ndarray]] = field(default_factory=dict)
    # Of the updates as one vector, where one is asked for: of the whole update, or else of the
    # layers compared.
    sketches: dict[str, np.ndarray] = field(default_factory=dict)
    rejected: dict[str, str] = field(default_factory=dict)
    bytes_down: int = 0  # of the requests
    bytes_up: int = 0

    @classmethod
    def for_model(
        cls, number: int, request: SummaryRequest, arrays: ArrayRecord, options: SelectionOptions
    ) -> "PreRound":
        """Return the pre-round for a model, or raise ValueError if it cannot be held with it."""
        if request.kind == "loss":
            if not any(math.prod(array.shape) for array in arrays.values()):
                raise ValueError(
                    "the rule asks for the loss, but the model is empty, so it has no loss yet "
                    "(and to evaluate it may kill a client): start with a model that has values, "
                    "such as a first tree, or use a rule that asks for nothing, such as "
                    "PowerOfChoice(..., variant='rpow-d') or UniformSelection"
                )
            return cls(number, request, {}, options)
        decoders = {
            record: SummaryDecoder.for_model(part, arrays, record)
            for record, part in request.parts.items()
        }
        num_bytes = sum(decoder.num_bytes for decoder in decoders.values())
        most = options.max_summary_bytes
        if most is not None and num_bytes > most:
            besides = request.besides and f" and {request.besides!r} of the whole update"
            raise ValueError(
                f"a summary with sketch {request.sketch!r} of {len(decoders[SUMMARY].sizes)} layers"
                f"{besides} takes {num_bytes} bytes, but max_summary_bytes is {most}: use a sketch "
                "of fewer or smaller numbers (a ':SIZE' or '@int8', where the rule takes one), or "
                "fewer layers"
            )
        fitted = replace(request, sketch=decoders[SUMMARY].sketch.spec)
        if request.besides:
            fitted = replace(fitted, besides=decoders[WHOLE].sketch.spec)
        return cls(number, fitted, decoders, options)

    @property
    def keeps_update(self) -> bool:
        """Whether those that answer have trained, and keep the update."""
        return self.request.kind == "update"

    @property
    def num_bytes(self) -> int:
        """Bytes of an answer's numbers, without names and framing."""
        return sum(part.num_bytes for part in self.decoders.values()) or _LOSS_BYTES

    def ask(
        self, template: Message, candidates: dict[str, int], resting: Collection[str] = ()
    ) -> list[Message]:
        """Return the request to each candidate, made of the base strategy's training message."""
        self.content, self.candidates, self.resting = template.content, candidates, set(resting)
        marker = {"round": self.number, "seed": self.options.seed, TICKET: self.ticket}
        of_all, of_resting = (
            marked(template.content, SUMMARIZE, {**marker, **request.to_config()})
            for request in (self.request, self.request.parts.get(WHOLE, self.request))
        )
        # The app's evaluate function knows the loss; only such a message reaches it.
        kind = MessageType.EVALUATE if self.request.kind == "loss" else None
        self.messages = [
            message_like(
                template,
                node_id,
                of_resting if client in self.resting else of_all,
                self.options.summary_timeout,
                kind,
            )
            for client, node_id in candidates.items()
        ]
        num_all = len(candidates) - len(self.resting)
        self.bytes_down = num_all * content_bytes(of_all)
        self.bytes_down += len(self.resting) * content_bytes(of_resting)
        return self.messages

    def hold(
        self,
        grid: Grid,
        template: Message,
        candidates: dict[str, int],
        resting: Collection[str] = (),
        timed: Callable[[Iterable[Message]], Iterable[Message]] = iter,
    ) -> None:
        """Ask the candidates, wait for their answers, and take those that `timed` lets through."""
        seconds = self.options.summary_timeout
        messages = self.ask(template, candidates, resting)
        received = grid.send_and_receive(messages, timeout=seconds)
        self.read(timed(received), f"no reply within {seconds:g} s")

    def read(self, received: Iterable[Message], missing: str) -> None:
        """Take the summaries that can be used of those that came."""
        replies = sort_replies(self.messages, received, missing)
        self.bytes_up = replies.bytes_up
        for client, node_id in self.candidates.items():
            try:
                answer = self._decode(replies.content_of(node_id), client in self.resting)
            except ValueError as error:
                reason = shortened(str(error))
                self.rejected[client] = f"pre-round: {reason}"
                log(INFO, "Summary of client %s is not used: %s", client, reason)
            else:
                self.summaries[client] = answer[SUMMARY]
                if self.request.whole or self.request.besides:
                    self.sketches[client] = answer.get(WHOLE, answer[SUMMARY])[ALL_LAYERS]

    def drop_all_but(self, chosen: Collection[str]) -> None:
        """Drop the summaries that nobody reads once the choice is made."""
        self.summaries = {c: summary for c, summary in self.summaries.items() if c in chosen}

    def _decode(self, content: RecordDict, rests: bool) -> dict[str, Mapping[str, np.ndarray]]:
        if not self.decoders:
            return {SUMMARY: decode_loss(content)}
        if rests and WHOLE in self.decoders:  # it is then all that was asked for
            return {SUMMARY: replace(self.decoders[WHOLE], record=SUMMARY).decode(content)}
        return {record: decoder.decode(content) for record, decoder in self.decoders.items()}

    def note(self, record: RoundRecord) -> None:
        """Put into a round's record who was asked, what came of it and what it cost."""
        record.asked, record.answered = list(self.candidates), list(self.summaries)
        record.rejected |= self.rejected
        record.bytes_down["pre-round"] = self.bytes_down
        record.bytes_up["pre-round"] = self.bytes_up
        zeros = [
            client
            for client, summary in self.summaries.items()
            if not any(values.any() for values in summary.values())
        ]
        if zeros:
            record.notes.append(
                f"the summary of {first_of(zeros, _NAMED)} is all zeros, which says "
                "nothing of its data: did it train, and are these layers trained under this name "
                "(tied weights have two)?"
            )
