"""Asking for summaries: in an exchange of their own, or ahead, with the evaluation before.

After aggregation, Flower sends the new weights out for evaluation anyway. In a deployment each
exchange costs seconds of polling, and each message a process; so a pre-round in that same exchange,
and in the same messages where clients can take both, costs next to nothing.

The base strategy has not configured the next round yet, and must not be asked before its time, so
its message is guessed: the last one, with the new weights and the next round's number. When the
round comes and the real message is another one, the answers are of no use, and a pre-round of its
own is held.
"""

from collections.abc import Collection, Iterable, Mapping
from copy import copy
from functools import partial
from logging import INFO

from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MessageType, RecordDict
from flwr.common import log
from flwr.common.constant import ErrorCode

from pncs_flower.messages.joint import join, part
from pncs_flower.messages.records import make_message, of_kind
from pncs_flower.protocol import MARKER, SUMMARIZE, SUMMARY, WHOLE, SummaryRequest

from .. import timeouts
from ..grids.exchange import message_like
from ..options import SelectionOptions
from ..record import RoundRecord
from .open_round import OpenRound
from .pre_round import PreRound
from .roster import Roster
from .selector import Selector

# Why answers are of no use where clients came or went: the guess at the message may be right.
_OTHER_CLIENTS = "other clients take part than were asked"
_LOST = "the run was taken up, and what was asked for ahead is lost"
_ROUND = "server-round"


class Asking:
    """Asks clients for what a rule wants to know of them."""

    def __init__(
        self, selector: Selector, request: SummaryRequest | None, options: SelectionOptions
    ) -> None:
        candidates = getattr(selector.rule, "num_candidates", None)
        if candidates is not None and candidates < options.min_summaries:
            raise ValueError(
                f"min_summaries is {options.min_summaries}, but only {candidates} candidates are "
                "asked: no round could be enough"
            )
        self._selector = selector
        self._request = request
        self._options = options
        self.last_round = 0  # of the run: without it, nobody is asked ahead
        self._sent: tuple[Message, ArrayRecord] | None = None  # to guess the next message from
        self._ahead: PreRound | None = None
        self._lost = False  # what was asked for ahead, when the run was stopped
        self._misfits = 0  # in a row
        self._next_try = 0  # round
        self._told = False

    def pre_round(self, number: int, arrays: ArrayRecord) -> PreRound | None:
        """Return a round's pre-round, which is still to be held; None if the rule has none."""
        if self._request is None:
            return None
        return PreRound.for_model(number, self._request, arrays, self._options)

    def ask(self, round: OpenRound, template: Message) -> None:
        """Take the summaries that came with the last evaluation, if they fit, or ask for them."""
        assert round.pre_round is not None
        candidates, record = round.nodes(round.plan.candidates), round.record
        ahead, self._ahead = self._ahead, None
        record.pre_round = "own" if not self._lost else f"own: {_LOST}"
        if self._lost and round.clock is not None and round.clock.remembers:
            # In simulated time these have been asked already: whatever came of it holds.
            ahead = round.pre_round
            self._hold(round, template, candidates)
        self._lost = False
        if ahead is not None:
            misfit = self._misfit(ahead, round, candidates, template)
            if misfit is None:
                self._misfits = 0
                if ahead is not round.pre_round:
                    record.pre_round, record.seconds["pre-round"] = "ahead", 0.0
                round.pre_round = ahead
            else:
                self._note_misfit(ahead, misfit, record)
                if round.clock is not None:
                    round.clock.misfit(record)
                if ahead is round.pre_round:
                    round.pre_round = self.pre_round(round.number, round.arrays)
        if round.pre_round is not ahead:
            self._hold(round, template, candidates)
        assert round.pre_round is not None
        round.pre_round.note(record)
        self._sent = template, round.arrays

    def _hold(self, round: OpenRound, template: Message, candidates: dict[str, int]) -> None:
        own, clock = round.pre_round, round.clock
        assert own is not None
        timed = iter if clock is None else partial(clock.end_pre_round, round, own)
        with round.timed("pre-round"):
            own.hold(round.grid, template, candidates, round.plan.resting, timed)

    def ask_ahead(
        self,
        round: OpenRound,
        arrays: ArrayRecord,
        roster: Roster,
        clients: Mapping[str, int] | None,
    ) -> list[Message]:
        """Return the messages of an evaluation, and requests for summaries of the next round."""
        # If that will come and can be guessed, and it is known who takes part.
        number = round.number + 1
        may_ask = self._next_try <= number <= self.last_round and self._options.ride_along
        if self._sent is None or not may_ask or clients is None:
            return round.evaluating
        ahead = self.pre_round(number, arrays)
        plan = self._selector.plan(number, list(clients))
        candidates = {client: clients[client] for client in plan.candidates}
        template, before = self._sent
        content = _guess_next_content(template.content, before, arrays)
        if ahead is None or not candidates or content is None:
            return round.evaluating
        self._ahead = ahead
        ahead.ask(Message(content, 0, template.metadata.message_type), candidates, plan.resting)
        # Each is to have the time that it would have alone.
        if round.timeout is not None and round.timeout <= self._options.summary_timeout:
            said = {node: roster.clients.get(client) for client, node in candidates.items()}
            able = {node for node, client in said.items() if client is not None and client.joint}
            _join(round.evaluating, ahead.messages, able)
        joint = set(map(id, round.evaluating))
        return [*round.evaluating, *(m for m in ahead.messages if id(m) not in joint)]

    def state(self) -> dict[str, int]:
        """Return whether summaries have been asked for ahead, and how often in vain."""
        lost = int(self._ahead is not None)
        return {"lost": lost, "misfits": self._misfits, "next-try": self._next_try}

    def restore(self, state: Mapping[str, int]) -> None:
        """Take up what `state` returned."""
        self._lost = bool(state["lost"])
        self._misfits, self._next_try = state["misfits"], state["next-try"]
        self._told = self._misfits > 1

    def take_answers(self, round: OpenRound, replies: Iterable[Message]) -> list[Message]:
        """Take the answers out of the replies to an evaluation, and return the others."""
        replies = list(replies)
        if round.clock is not None:
            replies = round.clock.end_evaluation(round, replies, self._ahead)
        if self._ahead is None:
            return replies
        own = {message.metadata.message_id for message in self._ahead.messages}
        evaluating = {message.metadata.message_id for message in round.evaluating}
        answers, mine, others = list[Message](), list[Message](), list[Message]()
        for reply in replies:
            whose = reply.metadata.reply_to_message_id
            if whose not in own:
                others.append(reply)
                continue
            answers.append(reply)
            if whose not in evaluating:
                mine.append(reply)
            else:
                summary, evaluation = _parted(reply)
                mine.append(summary)
                others.append(evaluation)
        self._ahead.read(mine, "no reply in time")
        for reply in answers:
            if reply.has_content():  # which Flower's loop has until the next evaluation
                for name in (SUMMARY, WHOLE):
                    reply.content.pop(name, None)
        return others

    def _misfit(
        self, ahead: PreRound, round: OpenRound, candidates: Mapping[str, int], template: Message
    ) -> str | None:
        """Return why answers are of no use to the round that has come, or None if they are."""
        asked = (candidates, set(round.plan.resting))
        if round.number != ahead.number or asked != (ahead.candidates, ahead.resting):
            return _OTHER_CLIENTS
        if template.content != ahead.content:
            return "the base strategy sends another message than was expected"
        offered = self._selector.offered(round.plan, ahead.summaries)
        could = self._selector.offered(round.plan, candidates)  # others rest
        wanted = min(self._selector.rule.num_selected, len(could))
        if len(offered) < max(self._options.min_summaries, wanted):
            return f"only {len(offered)} that may be chosen answered"
        return None

    def _note_misfit(self, ahead: PreRound, misfit: str, record: RoundRecord) -> None:
        """Note what was asked in vain."""
        # A base strategy whose next message cannot be guessed has clients train in vain, so the
        # more misfits there were in a row, the later is the next guess.
        record.pre_round = f"own: {misfit}"
        record.bytes_down["pre-round unused"] = ahead.bytes_down
        record.bytes_up["pre-round unused"] = ahead.bytes_up
        if misfit == _OTHER_CLIENTS:
            return
        self._misfits += 1
        self._next_try = record.round + timeouts.rounds_of_rest(self._misfits)
        if self._misfits > 1 and not self._told:
            self._told = True
            log(
                INFO,
                "Round %d: summaries asked for ahead were of no use (%s). They are asked for "
                "ahead again after 2, 4, ... and at most %d rounds, until they are.",
                *(record.round, misfit, timeouts.LONGEST_REST),
            )


def _join(evaluating: list[Message], requests: list[Message], able: Collection[int]) -> None:
    """Have the nodes that can take it get an evaluation and a request as one message."""
    places = {
        message.metadata.dst_node_id: place
        for place, message in enumerate(evaluating)
        if message.metadata.message_type == MessageType.EVALUATE and message.content
    }
    for index, request in enumerate(requests):
        node_id = request.metadata.dst_node_id
        if node_id in able and node_id in places:
            evaluation = evaluating[places[node_id]]
            content, ttl = join(request.content, evaluation.content), evaluation.metadata.ttl
            joint = message_like(request, node_id, content, ttl)
            requests[index] = evaluating[places[node_id]] = joint


def _parted(reply: Message) -> tuple[Message, Message]:
    """Return the replies that a request and an evaluation would have had, each alone."""
    if reply.has_error():
        return reply, reply
    summary, evaluation = part(reply.content)
    problems = of_kind(summary, ConfigRecord).get(MARKER, ConfigRecord())
    replies: list[Message] = []
    for what, content in ((SUMMARIZE, summary), (MessageType.EVALUATE, evaluation)):
        code, reason = ErrorCode.CLIENT_APP_RAISED_EXCEPTION, str(problems.get(what))
        metadata = copy(reply.metadata)
        if what == MessageType.EVALUATE:
            metadata.message_type = MessageType.EVALUATE
        said = Error(code, reason) if what in problems else content
        replies.append(make_message(metadata, said))
    return replies[0], replies[1]


def _guess_next_content(
    content: RecordDict, before: ArrayRecord, after: ArrayRecord
) -> RecordDict | None:
    """Return what a training message will hold in the next round, if all goes as usual."""
    # None if the model is not among the records as it is.
    if sum(record == before for record in of_kind(content, ArrayRecord).values()) != 1:
        return None
    following = RecordDict()
    for name, record in content.items():
        if isinstance(record, ArrayRecord) and record == before:
            following[name] = after
        elif isinstance(record, ConfigRecord) and isinstance(number := record.get(_ROUND), int):
            following[name] = ConfigRecord({**record, _ROUND: number + 1})
        else:
            following[name] = record
    return following
