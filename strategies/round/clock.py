"""The simulated clock: what a round would take on the clients' devices, and whose reply is late.

Messages are sent, and clients compute, as without it. What the clock adds is when each reply would
have been there, from the bytes that were sent and the examples that were gone through, and the
replies that would not have come in time become errors. Nobody waits for simulated time.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from flwr.app import Message

from pncs_flower.devices import Device, as_fleet
from pncs_flower.devices.availability import DAY
from pncs_flower.devices.timing import time_tasks, waited
from pncs_flower.plain_text import counted
from pncs_flower.protocol import client_order

from ..errors import TooFewClientsError
from ..options import SelectionOptions
from ..record import RoundRecord
from .exchange import Exchange, note_spans, with_errors
from .open_round import OpenRound
from .pre_round import PreRound
from .roster import Roster
from .work import EVALUATION, PRE_ROUND, TRAINING, Work

_UNUSED = "pre-round unused"
_LEAST_STEP = 1e-3  # seconds; so that the end of a period is passed, whatever its last bit
_LONGEST_WAIT = DAY  # once somebody has been there
_MOST_LOOKS = 10_000  # a week of minutes


@dataclass
class _Next:
    """What is settled of the next round before it is opened."""

    round: int
    present: list[str]  # who was there when this round's evaluation began
    # Of the summaries asked for ahead, if any were: how much longer they took than the evaluation,
    # whose are lost, and when who did what.
    seconds: float | None = None
    lost: dict[str, str] = field(default_factory=dict)
    spans: dict[str, list[float]] = field(default_factory=dict)


class Clock:
    """Keeps a run's simulated time."""

    # Who is there in a round is settled when the evaluation of the round before begins, whether or
    # not summaries are asked for ahead then: a run that is taken up has the same clients and the
    # same time. Its pre-round is held again, though the simulated server has never stopped, so
    # what was settled of it stands: how long it took, and whose answers are lost.

    def __init__(self, options: SelectionOptions, roster: Roster, num_selected: int) -> None:
        assert options.devices is not None
        self.fleet = as_fleet(options.devices)
        self.now = 0.0  # simulated seconds since the run began
        self._options, self._roster, self.num_selected = options, roster, num_selected
        self._devices: dict[str, Device] = {}
        self._next: _Next | None = None
        self._pending: _Next | None = None  # what was asked ahead for the open round
        self._listed: list[str] = []
        self._work = Work(roster)

    def device(self, client: str) -> Device:
        """Return a client's device."""
        if client not in self._devices:
            self._devices[client] = self.fleet.device(client, self._options.seed)
        return self._devices[client]

    def open(self, round: OpenRound) -> None:
        """Leave in a round those of its clients that are there; go on to when enough are."""
        record, settled = round.record, self._next
        self._next = self._pending = None
        record.clock = self.now
        if settled is not None and settled.round != round.number:
            settled = None
        if settled is not None and settled.seconds is not None:
            self._pending = settled
            self._spend(record, PRE_ROUND, settled.seconds)
            note_spans(record, PRE_ROUND, settled.spans)
        there = [] if settled is None else [c for c in settled.present if c in round.met]
        if len(there) < self.num_selected:
            there = self._wait(round)
        round.clients = {client: round.met[client] for client in there}
        if self._listed != there:
            self._listed = there
        record.clients = self._listed

    def _wait(self, round: OpenRound) -> list[str]:
        """Return who is there for a round: once enough are, or within a day, when most are."""
        start, first = self.now, None
        best: tuple[float, list[str]] = self.now, []
        everybody = counted(len(round.met), "client")
        for attempt in range(_MOST_LOOKS):
            there = self._present(round.met, round.number, attempt)
            first = len(there) if first is None else first
            if len(there) > len(best[1]):
                best = self.now, there
            if len(there) >= self.num_selected:
                break
            others = set(round.met).difference(there)
            after = min(self.device(c).availability.returns(self.now) for c in others)
            if after > start + _LONGEST_WAIT and best[1]:
                break
            if after == math.inf:
                raise TooFewClientsError(
                    f"at {self.now:.0f} s of simulated time 0 of {everybody} are there, and they "
                    "never come back: give the devices other times of being available (repeat)"
                )
            self.now = max(after, self.now + _LEAST_STEP)
        self.now, there = best
        if not there:
            raise TooFewClientsError(
                f"no client was there at any of {_MOST_LOOKS} looks, from {start:.0f} s of "
                "simulated time on: give the devices other times of being available"
            )
        if self.now > start:
            round.record.simulated_seconds["waiting"] = self.now - start
            round.record.notes.append(
                f"{first} of {everybody} were there, too few for a round, so the simulated clock "
                f"went on by {self.now - start:.3f} s, until {len(there)} were"
            )
        if len(there) < self.num_selected:
            round.record.notes.append(
                f"num_selected is {self.num_selected}, but only {len(there)} are there, and no "
                "more at once within a day: they are chosen from"
            )
        return there

    def _present(self, clients: Iterable[str], number: int, attempt: int = 0) -> list[str]:
        names = (self._options.seed, number, attempt)
        return [c for c in clients if self.device(c).availability.is_there(self.now, *names, c)]

    def look_ahead(self, round: OpenRound) -> dict[str, int] | None:
        """Settle who is there in the next round, by key; None if that must be waited for."""
        # Those of this round that have gone meanwhile are not evaluated on.
        number = round.number + 1
        present = self._present(round.met, number)
        if len(present) < self.num_selected:
            return None
        self._next = _Next(number, present)
        return {client: round.met[client] for client in present}

    def still_there(self, clients: Mapping[str, int]) -> dict[str, int]:
        """Return those of a round's clients that have not gone since."""
        leaves = {client: self.device(client).availability.leaves(self.now) for client in clients}
        return {client: node for client, node in clients.items() if leaves[client] > self.now}

    @property
    def remembers(self) -> bool:
        """Whether it is settled what came of the open round's pre-round, which was asked ahead."""
        return self._pending is not None

    def misfit(self, record: RoundRecord) -> None:
        """Take note that what was asked for ahead is of no use."""
        if self._pending is not None and self._pending.seconds is not None:
            record.simulated_seconds[_UNUSED] = record.simulated_seconds.pop(PRE_ROUND)
            for client in self._pending.spans:
                record.timeline[client][_UNUSED] = record.timeline[client].pop(PRE_ROUND)
            self._pending = None

    def end_pre_round(
        self, round: OpenRound, asked: PreRound, received: Iterable[Message]
    ) -> list[Message]:
        """Time a pre-round of its own, and return its answers, the lost ones as errors."""
        received = list(received)
        if self._pending is not None:  # the run was taken up: these had been answered before
            lost = self._pending.lost
            sent = zip(asked.candidates, asked.messages, strict=True)
            problems = {m.metadata.message_id: lost[c] for c, m in sent if c in lost}
            return with_errors(received, problems)
        messages = zip(asked.candidates, asked.messages, strict=True)
        exchange = self._exchange(round, [(*m, PRE_ROUND, asked) for m in messages], received)
        exchange.note(round.record, PRE_ROUND)
        self._spend(round.record, PRE_ROUND, self._waited(exchange))
        return exchange.counted(round.record, received)

    def end_training(
        self, round: OpenRound, sent: Iterable[tuple[str, Message]], received: list[Message]
    ) -> list[Message]:
        """Time the training, and return the replies, those as errors that did not count."""
        # A client that had lost its update has been sent two messages, one after the other.
        exchange = self._exchange(round, [(*m, TRAINING, None) for m in sent], received)
        seconds = self._waited(exchange)
        if self._options.extra:
            seconds = self._take_first(round, exchange, seconds)
        round.took = {
            client: min(outcome.span.sent, seconds)
            for client, outcome in exchange.last.items()
            if outcome.late or not outcome.problem
        }
        exchange.note(round.record, TRAINING)
        if exchange.messages:
            self._spend(round.record, TRAINING, seconds)
        return exchange.counted(round.record, received)

    def _take_first(self, round: OpenRound, exchange: Exchange, seconds: float) -> float:
        """Let the first updates count that arrive, and return for how long that was waited."""
        arrived = [client for client, each in exchange.last.items() if not each.problem]
        arrived.sort(key=lambda client: (exchange.last[client].span.sent, client_order(client)))
        surplus = arrived[self.num_selected :]
        if not surplus:
            return seconds
        until = exchange.last[arrived[self.num_selected - 1]].span.sent
        for place, task in enumerate(exchange.tasks):
            if task.client in surplus:
                after = exchange.last[task.client].span.sent - until
                problem = (
                    f"too late: {counted(self.num_selected, 'other')} had arrived before, the "
                    f"last by {after:.3f} s of simulated time"
                )
                outcome = exchange.outcomes[place]
                exchange.outcomes[place] = outcome._replace(problem=problem, late=True)
        round.surplus = set(surplus)
        return until

    def end_evaluation(
        self, round: OpenRound, received: list[Message], ahead: PreRound | None
    ) -> list[Message]:
        """Time an evaluation, and the request for summaries with it; see `end_training`."""
        client_of = {node_id: client for client, node_id in round.met.items()}
        requests = [] if ahead is None else ahead.messages
        requested, evaluating = (set(map(id, each)) for each in (requests, round.evaluating))
        alone = [message for message in requests if id(message) not in evaluating]
        exchange = self._exchange(
            round,
            [
                (
                    client_of[message.metadata.dst_node_id],
                    message,
                    EVALUATION if id(message) in evaluating else PRE_ROUND,
                    ahead if id(message) in requested else None,
                )
                for message in (*round.evaluating, *alone)
            ],
            received,
        )
        evaluation, summaries = exchange.part(evaluating), exchange.part(requested)
        seconds, longer = self._waited(evaluation), self._waited(summaries)
        if evaluation.messages:
            evaluation.note(round.record, EVALUATION)
            self._spend(round.record, EVALUATION, seconds)
        if ahead is not None and self._next is not None:
            self._next.seconds = max(0.0, longer - seconds)
            self._next.spans = summaries.spans()
            self._next.lost = {
                c: each.problem for c, each in summaries.last.items() if each.problem
            }
        return exchange.counted(round.record, received)

    def state(self) -> dict[str, Any]:
        """Return the time, and what is settled of the next round, as JSON values."""
        return {"now": self.now, "next": None if self._next is None else asdict(self._next)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take up what `state` returned."""
        self.now = float(state["now"])
        self._next = None if state["next"] is None else _Next(**state["next"])

    def _exchange(
        self,
        round: OpenRound,
        sent: Iterable[tuple[str, Message, str, PreRound | None]],
        received: Iterable[Message],
    ) -> Exchange:
        """Return what came of messages: each with its client, its phase, and for what summary."""
        replies: dict[str, Message] = {}
        for reply in received:
            replies.setdefault(reply.metadata.reply_to_message_id, reply)
        exchange = Exchange(self.now)
        for client, message, phase, asked in sent:
            answer = replies.get(message.metadata.message_id)
            exchange.messages.append(message)
            exchange.tasks.append(self._work.task(round, client, message, answer, phase, asked))
        options = self._options
        exchange.outcomes = time_tasks(
            exchange.tasks, self.device, options.seed, self.now, options.deadline
        )
        return exchange

    def _waited(self, exchange: Exchange) -> float:
        return waited(exchange.outcomes, self._options.deadline)

    def _spend(self, record: RoundRecord, phase: str, seconds: float) -> None:
        record.simulated_seconds[phase] = seconds
        self.now += seconds
