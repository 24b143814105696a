"""A round that is under way: what each phase finds, and what it leaves for the next."""

import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from ..options import SelectionOptions
from ..record import RoundRecord
from ..replies.model import Model
from ..rule import Metrics, Round, Summary
from .pre_round import PreRound


@dataclass(frozen=True)
class Plan:
    """Who may be chosen in a round, and who is to be asked."""

    now: Round
    candidates: tuple[str, ...]  # to ask in the pre-round; empty if the rule asks nobody
    resting: tuple[str, ...]  # of these, those that are asked for the combination alone
    rest_rounds: int  # for how many the queue holds back a client
    cooling: tuple[str, ...]  # held back by the queue
    released: tuple[str, ...]  # from the queue, because too few others are left
    backing_off: tuple[str, ...] = ()  # have failed: neither asked nor chosen
    returned: tuple[str, ...] = ()  # have failed, but even with those released too few are left

    def note(self, record: RoundRecord) -> None:
        """Put into a round's record who is held back, and who is not although it should be."""
        record.cooling, record.released = list(self.cooling), list(self.released)
        record.backing_off, record.rest_rounds = list(self.backing_off), self.rest_rounds
        if self.released:
            record.notes.append(
                f"too few clients were free, so {', '.join(self.released)} left the queue early"
            )
        if self.returned:
            record.notes.append(
                f"too few others are left, so {', '.join(self.returned)} may be chosen in spite of "
                "earlier failures"
            )


class RoundClock(Protocol):
    """What the phases of a round want of a simulated clock; see `Clock`."""

    num_selected: int

    @property
    def remembers(self) -> bool:
        """Whether it is settled what came of the pre-round, which was asked ahead."""

    def misfit(self, record: RoundRecord) -> None:
        """Take note that what was asked for ahead is of no use."""

    def still_there(self, clients: Mapping[str, int]) -> dict[str, int]:
        """Return those of a round's clients that have not gone since."""

    def end_pre_round(
        self, round: "OpenRound", asked: PreRound, received: Iterable[Message]
    ) -> list[Message]:
        """Time a pre-round, and return its answers, the lost ones as errors."""

    def end_training(
        self, round: "OpenRound", sent: Iterable[tuple[str, Message]], received: list[Message]
    ) -> list[Message]:
        """Time the training, and return the replies, those as errors that did not count."""

    def end_evaluation(
        self, round: "OpenRound", received: list[Message], ahead: PreRound | None
    ) -> list[Message]:
        """Time an evaluation, and the request for summaries with it."""


@dataclass
class OpenRound:
    """One round, from the call that opens it to the evaluation of its model."""

    # Given.
    base: Strategy
    options: SelectionOptions
    record: RoundRecord
    arrays: ArrayRecord
    config: ConfigRecord
    grid: Grid
    timeout: float | None  # for replies, if it is known: a wrapper's loop has its own
    model: Model
    pre_round: PreRound | None  # what is asked for; None if nobody is asked
    clock: "RoundClock | None" = None  # of simulated devices
    # Met: node ids by key, in the order of keys; with simulated devices, those of them that are
    # there.
    met: dict[str, int] = field(default_factory=dict)
    clients: dict[str, int] = field(default_factory=dict)
    # The base strategy's training messages, made once a round.
    configured: list[Message] = field(default_factory=list)
    # Planned; who is asked and chosen is in the record.
    plan: Plan = field(init=False)
    chances: Mapping[str, float] = field(default_factory=dict)  # of the chosen, if the rule draws
    # Sent to each chosen client; in full, if it has lost the update that it kept.
    sent: dict[str, Message] = field(default_factory=dict)
    whole: dict[str, Message] = field(default_factory=dict)
    sent_at: float = 0.0
    # How many seconds the chosen took, as far as that is known: simulated, or measured.
    took: Mapping[str, float] = field(default_factory=dict)
    surplus: Collection[str] = ()  # of the chosen, those whom enough others came before
    # What came of the training: clients whose update was as it should be, the numbers that came
    # with those that are in the new model, and clients whose sketch is not that of their update.
    trained: bool = False
    sound: Collection[str] = ()
    used: Mapping[str, Metrics] = field(default_factory=dict)
    liars: Mapping[str, str] = field(default_factory=dict)
    evaluating: list[Message] = field(default_factory=list)  # messages of the evaluation

    @property
    def number(self) -> int:
        """The round, from 1."""
        return self.record.round

    @property
    def summaries(self) -> Mapping[str, Summary]:
        """What came of the pre-round, by client."""
        return {} if self.pre_round is None else self.pre_round.summaries

    @property
    def sketches(self) -> Mapping[str, np.ndarray]:
        """What came in the pre-round for the combination, by client."""
        return {} if self.pre_round is None else self.pre_round.sketches

    def nodes(self, clients: Iterable[str]) -> dict[str, int]:
        """Return the node ids of some clients, by key."""
        return {client: self.clients[client] for client in clients}

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Note the seconds of a phase in the record."""
        start = time.monotonic()
        yield
        self.record.seconds[phase] = time.monotonic() - start
