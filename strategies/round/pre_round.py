"""The pre-round: ask the candidates for a summary, and read what can be used."""

import math
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from logging import INFO

import numpy as np
from flwr.app import ArrayRecord, Message, MessageType, RecordDict
from flwr.common import log
from flwr.serverapp import Grid

from pncs_flower.protocol import SUMMARIZE, TICKET, SummaryRequest

from ..grids.exchange import Replies, content_bytes, exchange, marked, message_like, shortened
from ..record import RoundRecord
from ..replies.arrays import SummaryDecoder, decode_loss

__all__ = ["PreRound"]

_NAMED = 5  # clients in a note


@dataclass(frozen=True)
class PreRound:
    """What is asked for, and how an answer is read.

    Attributes
    ----------
    request : SummaryRequest
        What each candidate is asked for; a sketch by share of an update is fitted to the model.
    decode : callable
        Reads an answer, or raises ValueError.
    seed : int
        The strategy's seed, which sketches depend on.
    timeout : float
        Seconds to wait for the answers.
    ticket : str
        Names this pre-round and no other, also not one of the same round whose answers are of no
        use. Drawn by the system: nothing is computed from it.
    """

    request: SummaryRequest
    decode: Callable[[RecordDict], dict[str, np.ndarray]]
    seed: int
    timeout: float
    ticket: str = field(default_factory=lambda: secrets.token_hex(8))

    @classmethod
    def for_model(
        cls,
        request: SummaryRequest,
        arrays: ArrayRecord,
        seed: int,
        timeout: float,
        max_bytes: int | None = None,
    ) -> "PreRound":
        """Return the pre-round for a model.

        Raises
        ------
        ValueError
            If the model has no such layer; the message lists those that exist. Or if a summary
            would take more than ``max_bytes``, or a loss is asked for of an empty model.
        """
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

    def ask(
        self, grid: Grid, template: Message, candidates: Mapping[str, int], record: RoundRecord
    ) -> dict[str, dict[str, np.ndarray]]:
        """Ask candidates for their summaries.

        Parameters
        ----------
        grid : Grid
            The grid.
        template : Message
            The training message of the base strategy.
        candidates : mapping of str to int
            Node ids of the clients to ask, by key.
        record : RoundRecord
            Takes who was asked, who answered, who was rejected and why, bytes and seconds.

        Returns
        -------
        dict of str to dict of str to np.ndarray
            The summaries that can be used, by client, in the order of ``candidates``.
        """
        start = time.monotonic()
        messages = self.messages(template, candidates, record.round)
        replies = exchange(grid, messages, self.timeout)
        record.bytes_down["pre-round"] = sum(content_bytes(m.content) for m in messages)
        summaries = self.read(replies, candidates, record)
        record.seconds["pre-round"] = time.monotonic() - start
        return summaries

    def messages(
        self, template: Message, candidates: Mapping[str, int], round: int
    ) -> list[Message]:
        """Return the request to each candidate."""
        marker = {
            "round": round,
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
