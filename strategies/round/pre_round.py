"""What candidates are asked for in a pre-round, and what of their answers can be used."""

import math
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from logging import INFO

import numpy as np
from flwr.app import ArrayRecord, Message, MessageType, RecordDict
from flwr.common import log

from pncs_flower.protocol import SUMMARIZE, TICKET, SummaryRequest

from ..grids.exchange import Replies, marked, message_like, shortened
from ..options import SelectionOptions
from ..record import RoundRecord
from ..replies.summaries import SummaryDecoder, decode_loss

__all__ = ["PreRound"]

_NAMED = 5  # clients in a note


@dataclass(frozen=True)
class PreRound:
    """What is asked for, and how an answer is read."""

    request: SummaryRequest  # a sketch by share of an update is fitted to the model
    decode: Callable[[RecordDict], dict[str, np.ndarray]]
    seed: int
    timeout: float
    # Names this pre-round and no other, also not one of the same round whose answers are of no
    # use. Drawn by the system: nothing is computed from it.
    ticket: str = field(default_factory=lambda: secrets.token_hex(8))

    @classmethod
    def for_model(
        cls, request: SummaryRequest, arrays: ArrayRecord, options: SelectionOptions
    ) -> "PreRound":
        """Return the pre-round for a model, or raise ValueError if it cannot be held with it."""
        seed, timeout, max_bytes = options.seed, options.summary_timeout, options.max_summary_bytes
        if request.kind == "loss":
            if not any(math.prod(array.shape) for array in arrays.values()):
                raise ValueError(
                    "the rule asks for the loss, but the model is empty, so it has no loss yet "
                    "(and to evaluate it may kill a client): start with a model that has values, "
                    "such as a first tree, or use a rule that asks for nothing, such as "
                    "PowerOfChoice(..., variant='rpow-d') or UniformSelection"
                )
            return cls(request, decode_loss, seed, timeout)
        decoder = SummaryDecoder.for_model(request, arrays)
        if max_bytes is not None and decoder.num_bytes > max_bytes:
            raise ValueError(
                f"a summary with sketch {request.sketch!r} of {len(decoder.sizes)} layers takes "
                f"{decoder.num_bytes} bytes, but max_summary_bytes is {max_bytes}: use a sketch "
                "of fewer or smaller numbers (a ':SIZE' or '@int8', where the rule takes one), or "
                "fewer layers"
            )
        return cls(replace(request, sketch=decoder.sketch.spec), decoder.decode, seed, timeout)

    @property
    def keeps_update(self) -> bool:
        """Whether those that answer have trained, and keep the update."""
        return self.request.kind == "update"

    def messages(
        self, template: Message, candidates: Mapping[str, int], number: int
    ) -> list[Message]:
        """Return the request to each candidate, made of the base strategy's training message."""
        marker = {
            "round": number,
            "seed": self.seed,
            TICKET: self.ticket,
            **self.request.to_config(),
        }
        content = marked(template.content, SUMMARIZE, marker)
        return [
            message_like(
                template,
                node_id,
                content,
                ttl=self.timeout,
                # The app's evaluate function knows the loss; only such a message reaches it.
                message_type=MessageType.EVALUATE if self.request.kind == "loss" else None,
            )
            for node_id in candidates.values()
        ]

    def read(
        self, replies: Replies, candidates: Mapping[str, int], record: RoundRecord
    ) -> dict[str, dict[str, np.ndarray]]:
        """Return the summaries that can be used; the record takes who was asked and the rest."""
        summaries: dict[str, dict[str, np.ndarray]] = {}
        for client, node_id in candidates.items():
            try:
                if node_id in replies.failures:
                    raise ValueError(replies.failures[node_id])
                summaries[client] = self.decode(replies.contents[node_id])
                for values in summaries[client].values():
                    values.flags.writeable = False  # a rule and the check of sketches share them
            except ValueError as error:
                reason = shortened(str(error))
                record.rejected[client] = f"pre-round: {reason}"
                log(INFO, "Summary of client %s is not used: %s", client, reason)
        zeros = [client for client, summary in summaries.items() if not _any(summary)]
        if zeros:
            more = f" and {len(zeros) - _NAMED} others" if len(zeros) > _NAMED else ""
            record.notes.append(
                f"the summary of {', '.join(zeros[:_NAMED])}{more} is all zeros, which says "
                "nothing of its data: did it train, and are these layers trained under this name "
                "(tied weights have two)?"
            )
        record.asked, record.answered = list(candidates), list(summaries)
        record.bytes_up["pre-round"] = replies.bytes_up
        return summaries


def _any(summary: Mapping[str, np.ndarray]) -> bool:
    return any(values.any() for values in summary.values())
