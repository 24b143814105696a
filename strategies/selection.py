"""The two-phase round: ask for summaries, choose, and let any Flower strategy train the chosen."""

import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, TypedDict

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from flwr.supercore import log

from pncs_flower.protocol import SUMMARIZE, TRAIN, SummaryRequest

from .base import check_base
from .decoding import SummaryDecoder, check_update, decode_loss
from .errors import NoSummariesError, SelectionError
from .exchange import content_bytes, exchange, marked_message, sort_replies
from .grid_view import GridView
from .history import RoundRecord, append_json_line, write_json_lines
from .resumption import EvaluateFunction, Resumption
from .roster import Roster
from .rule import Metrics, SelectionRule, Summary
from .selector import Plan, Selector

__all__ = ["SelectionOptions", "SelectionStrategy"]

_INFO = 20


class SelectionOptions(TypedDict, total=False):
    """Options that every selection strategy takes; see `SelectionStrategy`."""

    queue_length: int
    seed: int
    eligible: Callable[[str], bool] | None
    min_clients: int | None
    wait_timeout: float
    summary_timeout: float
    history_path: str | Path | None
    checkpoint: str | Path | None


class SelectionStrategy(Strategy):
    """Let a rule choose the clients of each round, and a Flower strategy do all the rest.

    It runs under Flower's own `start`. The base strategy is asked once a round to configure
    training, for as many clients as are to be chosen; its message is what the candidates get in
    the pre-round and the chosen in training. It aggregates what the chosen deliver, sorted by
    client, so that the result does not depend on who was first.

    Parameters
    ----------
    base : Strategy
        Any message-based Flower strategy: it configures, aggregates and evaluates.
    rule : SelectionRule
        Who is asked, for what, and who is chosen.
    queue_length : int (default: 0)
        Length of the Age-of-Update queue, in clients: a client selected in round t may be selected
        again in round t' > t + queue_length / num_selected.
    seed : int (default: 0)
        Seed of everything random in sketches and choices.
    eligible : callable, optional (default: None)
        ``eligible(key) -> bool``: whether a client may take part at all.
    min_clients : int, optional (default: None)
        Wait for this many clients before the first round. If None, simulated clients (those with
        ``num-partitions`` in their node config) say how many there are.
    wait_timeout : float (default: 60.0)
        Seconds to wait for clients to connect, and for a new one to introduce itself.
    summary_timeout : float (default: 600.0)
        Seconds to wait for the summaries; the rule then chooses among those that arrived.
    history_path : str or Path, optional (default: None)
        A file to which the record of each round is appended, as a line of JSON.
    checkpoint : str or Path, optional (default: None)
        A folder in which the run is saved after each round. Where it holds a run already, `start`
        goes on in the round after. Clients must not depend on what they remember of earlier rounds.

    Attributes
    ----------
    history : list of RoundRecord
        One record per round.

    Raises
    ------
    ValueError
        If an option is out of range, or the base strategy would wait for more clients than are
        chosen, or leave some out.
    """

    def __init__(
        self,
        base: Strategy,
        rule: SelectionRule,
        *,
        queue_length: int = 0,
        seed: int = 0,
        eligible: Callable[[str], bool] | None = None,
        min_clients: int | None = None,
        wait_timeout: float = 60.0,
        summary_timeout: float = 600.0,
        history_path: str | Path | None = None,
        checkpoint: str | Path | None = None,
    ) -> None:
        if rule.num_selected < 1:
            raise ValueError(
                f"num_selected is {rule.num_selected}, but a round selects at least 1 client"
            )
        if queue_length < 0:
            raise ValueError(f"queue_length is {queue_length}, but must be 0 (no queue) or more")
        if min_clients is not None and min_clients < rule.num_selected:
            raise ValueError(
                f"min_clients is {min_clients}, but each round selects {rule.num_selected}"
            )
        for name, seconds in (("wait_timeout", wait_timeout), ("summary_timeout", summary_timeout)):
            if not 0 < seconds < float("inf"):
                raise ValueError(f"{name} is {seconds}, but must be a number of seconds above 0")
        check_base(base, rule.num_selected)
        self.base = base
        self.rule = rule
        self.queue_length = queue_length
        self.seed = seed
        self.history: list[RoundRecord] = []
        self._selector = Selector(rule, queue_length, seed)
        self._roster = Roster(min_clients, wait_timeout, eligible)
        self._summary_timeout = summary_timeout
        self._history_path = None if history_path is None else Path(history_path)
        self._resumption = None if checkpoint is None else Resumption(checkpoint, base)
        self._clients: dict[str, int] = {}
        self._plan: Plan | None = None
        self._sent: list[Message] = []
        self._evaluations: list[Message] = []
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._training_start = 0.0

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFunction | None = None,
    ) -> Result:
        """Run Flower's loop of rounds; with a checkpoint, those that are not done yet.

        See `flwr.serverapp.strategy.Strategy.start`, which this calls.
        """
        loop = partial(super().start, grid, timeout=timeout, evaluate_config=evaluate_config)
        if self._resumption is None:
            return loop(
                initial_arrays, num_rounds, train_config=train_config, evaluate_fn=evaluate_fn
            )
        return self._resumption.run(
            self, loop, initial_arrays, num_rounds, train_config, evaluate_fn
        )

    # --- training ---------------------------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Carry out the pre-round, choose, and return the training messages for the chosen.

        Raises
        ------
        TooFewClientsError
            If fewer than ``num_selected`` clients take part.
        NoSummariesError
            If all that were asked for a summary failed to send one.
        ValueError
            If the rule asks for a layer that the model does not have.
        """
        server_round += self._offset
        if self._resumption is not None:
            self._resumption.save(self, server_round - 1, arrays)
        request = self.rule.request
        # First of all, so that an unknown layer is an error before anybody trains.
        decode = _decoder(request, arrays) if request else None
        record = RoundRecord(server_round, rule=str(self.rule))
        self.history.append(record)
        self._clients = self._roster.update(grid, self.rule.num_selected, record)
        self._selector.learn_sizes(self._roster.num_examples)
        plan = self._selector.plan(server_round, list(self._clients))
        record.cooling, record.released = list(plan.cooling), list(plan.released)
        if plan.released:
            record.notes.append(
                f"too few clients were free, so {', '.join(plan.released)} left the queue early"
            )

        if not plan.candidates:
            request = None  # a rule may ask in some rounds only
        summaries: dict[str, Summary] = {}
        templates: list[Message] = []
        if request and decode:
            templates = self._configure_base(
                server_round, arrays, config, grid, plan.now.available[: self.rule.num_selected]
            )
            if templates:
                template = _same_for_all(templates, self.base)
                summaries = self._collect_summaries(grid, plan, request, decode, template, record)
        start = time.monotonic()
        choice = self._selector.choose(plan, summaries)
        record.seconds["selection"] = time.monotonic() - start
        record.chosen = list(choice.clients)
        record.mean_similarity, record.optimal = choice.mean_similarity, choice.optimal
        if not request:
            templates = self._configure_base(server_round, arrays, config, grid, choice.clients)

        by_node = {message.metadata.dst_node_id: message for message in templates}
        marker = {"round": server_round, "seed": self.seed}
        self._sent = [
            marked_message(
                node_id,
                TRAIN,
                marker,
                # Without a pre-round, a base strategy may have a message of its own for each.
                by_node[node_id] if not request else templates[0],
            )
            for node_id in (self._clients[client] for client in choice.clients)
            if templates and (request or node_id in by_node)
        ]
        self._plan = plan
        self._shapes = {name: tuple(array.shape) for name, array in arrays.items()}
        record.bytes_down["training"] = sum(content_bytes(m.content) for m in self._sent)
        self._training_start = time.monotonic()
        return self._sent

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Drop the updates that cannot be used and hand the others on, sorted by client."""
        received = list(replies)
        server_round += self._offset
        record, plan = self.history[-1], self._plan
        if plan is None or record.round != server_round:
            raise SelectionError(f"round {server_round} was not configured by this strategy")
        record.seconds["training"] = time.monotonic() - self._training_start
        sorted_replies = sort_replies(self._sent, received, "no reply in time")
        record.bytes_up["training"] = sorted_replies.bytes_up
        message_of = {m.metadata.reply_to_message_id: m for m in reversed(received)}
        node_of = {m.metadata.dst_node_id: m.metadata.message_id for m in self._sent}

        start = time.monotonic()
        updates: list[Message] = []
        metrics_of: dict[str, Metrics] = {}
        for client in record.chosen:
            node_id = self._clients[client]
            content = sorted_replies.contents.get(node_id)
            try:
                if content is None:
                    raise ValueError(sorted_replies.failures.get(node_id, "it was not asked"))
                check_update(content, self._shapes)
            except ValueError as error:
                record.rejected[client] = f"training: {error}"
                log(_INFO, "Update of client %s is not used: %s", client, error)
                continue
            record.delivered.append(client)
            metrics_of[client] = _numbers(content)
            updates.append(message_of[node_of[node_id]])
        arrays, metrics = self.base.aggregate_train(server_round, updates)
        record.seconds["aggregation"] = time.monotonic() - start
        if arrays is None:
            record.notes.append("no new model came out of this round: the last one is kept")
        self._selector.observe(plan, metrics_of)
        self._plan, self._sent = None, []
        if self._history_path is not None:
            append_json_line(self._history_path, record.to_dict())
        if self._resumption is not None:
            self._resumption.note_train_metrics(server_round, metrics)
        return arrays, metrics

    def _configure_base(
        self,
        server_round: int,
        arrays: ArrayRecord,
        config: ConfigRecord,
        grid: Grid,
        clients: Iterable[str],
    ) -> list[Message]:
        """Have the base strategy make its training messages for these clients.

        Once in a round: a base strategy may decay a learning rate or charge a privacy budget when
        it is called, so it must not be called for the pre-round and again for training.
        """
        view = GridView(grid, [self._clients[client] for client in clients])
        return list(self.base.configure_train(server_round, arrays, config, view))

    def _collect_summaries(
        self,
        grid: Grid,
        plan: Plan,
        request: SummaryRequest,
        decode: Callable[[RecordDict], Summary],
        template: Message,
        record: RoundRecord,
    ) -> dict[str, Summary]:
        start = time.monotonic()
        marker = {"round": plan.now.number, "seed": self.seed, **request.to_config()}
        messages = [
            marked_message(
                self._clients[client],
                SUMMARIZE,
                marker,
                template,
                ttl=self._summary_timeout,
                # The app's evaluate function knows the loss; only such a message reaches it.
                message_type=MessageType.EVALUATE if request.kind == "loss" else None,
            )
            for client in plan.candidates
        ]
        record.asked = list(plan.candidates)
        replies = exchange(grid, messages, self._summary_timeout)
        summaries: dict[str, Summary] = {}
        for client in plan.candidates:
            node_id = self._clients[client]
            try:
                if node_id in replies.failures:
                    raise ValueError(replies.failures[node_id])
                summaries[client] = decode(replies.contents[node_id])
            except ValueError as error:
                record.rejected[client] = f"pre-round: {error}"
                log(_INFO, "Summary of client %s is not used: %s", client, error)
        record.answered = list(summaries)
        record.bytes_down["pre-round"] = sum(content_bytes(m.content) for m in messages)
        record.bytes_up["pre-round"] = replies.bytes_up
        record.seconds["pre-round"] = time.monotonic() - start
        unasked = set(plan.now.available) - set(plan.candidates)
        if not summaries and not (self.rule.chooses_unasked and unasked):
            client, reason = next(iter(record.rejected.items()), ("", "nobody was asked"))
            raise NoSummariesError(
                f"none of the {len(plan.candidates)} clients asked in round {plan.now.number} sent "
                f"a summary that can be used; client {client}: {reason}"
            )
        if len(summaries) < self.rule.num_selected:
            record.notes.append(
                f"{len(summaries)} clients answered, so only they are chosen in place of "
                f"{self.rule.num_selected}"
            )
        return summaries

    # --- evaluation: the base strategy's, on the clients that take part ------------------------

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Have the base strategy configure evaluation, on the clients of this round's roster."""
        view = GridView(grid, self._clients.values())
        number = server_round + self._offset
        self._evaluations = list(self.base.configure_evaluate(number, arrays, config, view))
        return self._evaluations

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Have the base strategy aggregate the evaluation, sorted by client."""
        place = {node_id: place for place, node_id in enumerate(self._clients.values())}
        place_of_reply = {
            message.metadata.message_id: place.get(message.metadata.dst_node_id, len(place))
            for message in self._evaluations
        }
        ordered = sorted(
            (reply for reply in replies if reply.metadata.reply_to_message_id in place_of_reply),
            key=lambda reply: place_of_reply[reply.metadata.reply_to_message_id],
        )
        metrics = self.base.aggregate_evaluate(server_round + self._offset, ordered)
        if self._resumption is not None:
            self._resumption.note_evaluate_metrics(server_round + self._offset, metrics)
        return metrics

    # --- what it does, and what it remembers ----------------------------------------------------

    def summary(self) -> None:
        """Log what the strategy does, and then the base strategy's own summary."""
        request = self.rule.request
        asked = (
            f"{request.kind}, sketch {request.sketch}, layers "
            f"{'all' if request.layers is None else ', '.join(request.layers)}"
            if request
            else "nothing"
        )
        log(_INFO, "\t├──> Selection:")
        log(_INFO, "\t│\t├──Rule: %s", self.rule)
        log(_INFO, "\t│\t├──Clients per round: %d", self.rule.num_selected)
        log(_INFO, "\t│\t├──Asked in the pre-round: %s", asked)
        log(_INFO, "\t│\t├──Age-of-Update queue: %d clients", self.queue_length)
        log(_INFO, "\t│\t└──Seed: %d", self.seed)
        log(_INFO, "\t├──> Base: %s", type(self.base).__name__)
        self.base.summary()

    def state(self) -> dict[str, Any]:
        """Return all that later choices depend on: JSON values and NumPy arrays."""
        return self._selector.state()

    def restore(self, state: dict[str, Any]) -> None:
        """Take up what `state` returned, to go on in the round after."""
        self._selector.restore(state)

    def restore_history(self, records: list[RoundRecord]) -> None:
        """Take up the records of rounds already done; the file then holds these and no others."""
        self.history[:] = records
        if self._history_path is not None:
            write_json_lines(self._history_path, [record.to_dict() for record in records])

    def settings(self) -> str:
        """Return what a choice depends on besides the state."""
        return f"{self.rule}, queue_length={self.queue_length}, seed={self.seed}"

    @property
    def _offset(self) -> int:
        return 0 if self._resumption is None else self._resumption.offset


def _decoder(request: SummaryRequest, arrays: ArrayRecord) -> Callable[[RecordDict], Summary]:
    return (
        decode_loss if request.kind == "loss" else SummaryDecoder.for_model(request, arrays).decode
    )


def _same_for_all(messages: list[Message], base: Strategy) -> Message:
    """Return the one training message of a base strategy, or say that it has several.

    The pre-round comes before the choice, so the message must not depend on who is chosen.
    """
    first = messages[0]
    if any(_differ(first.content, message.content) for message in messages[1:]):
        raise SelectionError(
            f"{type(base).__name__} makes a message of its own for each client. A rule that asks "
            "for summaries needs one message for all, because it is sent before the choice"
        )
    return first


def _numbers(content: RecordDict) -> Metrics:
    """Return all single numbers among a reply's metrics."""
    return {
        name: float(value)
        for metrics in content.metric_records.values()
        for name, value in metrics.items()
        if not isinstance(value, list)
    }


def _differ(one: RecordDict, other: RecordDict) -> bool:
    return one is not other and one != other
