"""The two-phase round: ask for summaries, choose, and let any Flower strategy train the chosen."""

import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial, wraps
from logging import INFO, WARNING
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, cast

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.common import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from pncs_flower.protocol import TICKET

from .base_strategy import (
    check_base,
    check_evaluation,
    joins_bytes,
    least_evaluating,
    named_base,
    same_for_all,
    unwrap,
)
from .checks import check_whole
from .errors import EmptyRoundsError, SelectionError
from .grids.exchange import message_like
from .grids.polling import polled
from .grids.releases import check_arguments
from .grids.view import GridView
from .options import CheckedOptions, SelectionOptions
from .record import Records, RoundRecord
from .replies.aggregation import aggregate
from .replies.layers import share_layers
from .replies.metrics import CommonMetrics
from .replies.model import Model
from .replies.other_forms import OtherForms
from .replies.updates import Delivery, SketchCheck, UpdateChecks
from .resume.remembered import Remembered, Setting
from .resume.resumption import Resumption
from .resume.settings import settings_of
from .round.asking import Asking
from .round.choosing import Choosing
from .round.evaluation import Evaluation
from .round.roster import Roster
from .round.selector import Plan, Selector
from .round.training import TIMEOUT, Training, TrainingMessages
from .rule import SelectionRule, Summary, check_rule
from .stopping import EvaluateFunction, Loop, ShouldStop, naming_round
from .traffic import log_traffic

__all__ = ["SelectionStrategy"]


_Method = TypeVar("_Method", bound=Callable[..., Any])


def _recorded(method: _Method) -> _Method:
    """Have the record of the round on disk if an error passes through a method."""

    @wraps(method)
    def call(self: "SelectionStrategy", *args: Any, **kwargs: Any) -> Any:
        with self._records.kept():
            return method(self, *args, **kwargs)

    return cast(_Method, call)


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
    **options
        See `SelectionOptions`.

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
        **options: Unpack[SelectionOptions],
    ) -> None:
        check_rule(rule)
        asked = getattr(rule, "num_candidates", None)
        self.options = CheckedOptions.of(options, type(self))
        self.options.check(rule.num_selected)
        if asked is not None and asked < self.options.min_summaries:
            raise ValueError(
                f"min_summaries is {self.options.min_summaries}, but only {asked} candidates are "
                "asked: no round could be enough"
            )
        check_base(base, rule.num_selected)
        self.base = base
        self.rule = rule
        self._records = Records(self.options.history_path)
        self.history = self._records.all
        self._selector = Selector(rule, self.options.queue_length, self.options.seed)
        self._roster = Roster(
            self.options.min_clients,
            self.options.wait_timeout,
            self.options.eligible,
            self.options.start_timeout,
            self.options.max_weight,
        )
        self._asking = Asking(rule, self._selector, self.options)
        self._choosing = Choosing(rule, self._selector, base, self.options)
        self._common = CommonMetrics("training")
        self._other_forms = OtherForms(base)
        self._evaluation = Evaluation(base, self.options.max_weight)
        folder = self.options.checkpoint
        self._resumption = None if folder is None else Resumption(Path(folder).expanduser())
        # What one call leaves for the next, within a round.
        self._clients: dict[str, int] = {}
        self._configured: list[Message] = []
        self._loop: Loop | None = None
        self._everybody_told = False
        self._told_traffic = False
        self._training: Training | None = None
        self._timeout: float | None = None

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = TIMEOUT,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFunction | None = None,
        should_stop: ShouldStop | None = None,
        **further: Any,
    ) -> Result:
        """Run Flower's loop of rounds; with a checkpoint, those that are not done yet.

        See `flwr.serverapp.strategy.Strategy.start`, which this calls, and which gets all further
        arguments that it has. The timeout for training is 600 seconds unless another is given, not
        the hour of Flower's own.

        ``should_stop(server_round, result) -> bool`` is asked after each round whether to stop
        early, as in Flower 1.43 but with every release. With a checkpoint, the rounds and the
        result are those of the whole run, and a run that has been stopped stays stopped when it is
        started again with a ``should_stop``.

        Raises
        ------
        TypeError
            If there is an argument that the installed Flower does not have.
        """
        check_whole(least=0, num_rounds=num_rounds)
        check_arguments(super().start, further)
        if should_stop is not None and not callable(should_stop):
            raise TypeError(f"should_stop is {should_stop!r}, but must be callable")
        if self.history:
            raise SelectionError(
                "this strategy has run before, and remembers who was chosen: make a new one for "
                "another run, or give it checkpoint= to go on with a run that was stopped"
            )
        evaluate_fn = naming_round("evaluate_fn", evaluate_fn)
        should_stop = naming_round("should_stop", should_stop)
        self._records.prepare()
        self._asking.expect(num_rounds)
        self._timeout = timeout
        loop = self._loop = Loop(
            partial(
                super().start,
                polled(grid),
                timeout=timeout,
                **further,
            )
        )
        with self._records.kept():
            if self._resumption is None:
                result = loop(
                    initial_arrays,
                    num_rounds,
                    train_config=train_config,
                    evaluate_config=evaluate_config,
                    evaluate_fn=evaluate_fn,
                    should_stop=should_stop,
                )
                if not result.arrays:  # Flower forgets the model if no round gave a new one
                    result.arrays = initial_arrays
            else:
                result = self._resumption.run(
                    self,
                    loop,
                    initial_arrays,
                    num_rounds,
                    train_config,
                    evaluate_config,
                    evaluate_fn,
                    should_stop,
                )
        self._records.write()  # of its last checkpoint, there may be something to say
        return result

    # --- training ---------------------------------------------------------------------------

    @_recorded
    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Carry out the pre-round, choose, and return the training messages for the chosen.

        Raises
        ------
        TooFewClientsError
            If fewer than ``num_selected`` clients take part.
        NoSummariesError
            If too few summaries came, and it is plain that none will come or the option says stop.
        ValueError
            If the rule asks for a layer that the model does not have.
        """
        server_round += self._offset
        grid = polled(grid)  # again, for a wrapper around this strategy has a loop of its own
        if self._resumption is not None:
            self._resumption.save(self, server_round - 1, arrays)
        record = self._records.open(server_round, str(self.rule))
        # First of all, so that what cannot work is an error before anybody trains.
        model = Model(arrays, may_grow=joins_bytes(self.base))
        pre_round = self._asking.pre_round(arrays)
        evaluating = least_evaluating(self.base)
        self._clients = self._roster.update(
            grid,
            self.rule.num_selected,
            record,
            evaluating,
            partial(self._message_type, server_round, arrays, config, grid),
        )
        if len(self.history) == 1:  # later, clients may have left: see `configure_evaluate`
            check_evaluation(self.base, len(self._clients))
        elif len(self._clients) < evaluating:  # noted now, before the record is written
            record.notes.append("too few clients are left for an evaluation: there is none")
        self._tell_what_has_no_effect()
        self._selector.learn_sizes(self._roster.num_examples)
        self._selector.note_without_examples(self._roster.without_examples, server_round)
        plan = self._selector.plan(server_round, list(self._clients))
        plan.note(record)
        if not plan.candidates:
            pre_round = None  # a rule may ask in some rounds only

        templates: list[Message] = []
        summaries: dict[str, Summary] = {}
        if pre_round is not None:
            templates = self._configure_base(
                server_round, arrays, config, grid, plan.now.available[: self.rule.num_selected]
            )
            if not templates:  # the base strategy does not train in this round
                messages = TrainingMessages({}, {})
                return self._send(messages, plan, model, grid, None, record)
            template = same_for_all(templates, self.base)
            candidates = {client: self._clients[client] for client in plan.candidates}
            summaries.update(
                self._asking.summaries(grid, pre_round, template, arrays, candidates, record)
            )
        choice = self._choosing.choose(plan, summaries, self.history)
        if pre_round is None:
            templates = self._configure_base(server_round, arrays, config, grid, choice.clients)
        sketches = None
        if self.options.verify_sketches and pre_round and pre_round.request.kind == "update":
            sketches = SketchCheck(pre_round.request, summaries, self.options.seed, server_round)

        chosen = {client: self._clients[client] for client in choice.clients}
        marker = {"round": server_round, "seed": self.options.seed}
        if pre_round is None:
            messages = TrainingMessages.without_pre_round(templates, chosen, marker)
        else:
            keeping = summaries if pre_round.request.kind == "update" else ()
            messages = TrainingMessages.after_pre_round(
                templates[0], chosen, keeping, {**marker, TICKET: self._asking.ticket}
            )
        return self._send(messages, plan, model, grid, sketches, record)

    @_recorded
    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Drop the updates that cannot be used and hand the others on, sorted by client.

        Raises
        ------
        EmptyRoundsError
            If this was the last of too many rounds in a row without a new model.
        """
        server_round += self._offset
        training, self._training = self._training, None
        if training is None or self.history[-1].round != server_round:
            raise SelectionError(f"round {server_round} was not configured by this strategy")
        record, checks = self.history[-1], training.checks
        received = training.complete(replies, record)
        start = time.monotonic()
        delivery = training.sort_out(received, record)
        self._other_forms.check(delivery.others, self.history)
        for client, reason in delivery.liars.items():
            self._roster.exclude(client, reason)
        sound = list(delivery.metrics)
        if 0 < len(delivery.messages) < self.options.min_updates:
            record.notes.append(
                f"{len(delivery.messages)} updates are fewer than min_updates = "
                f"{self.options.min_updates}, so they are not used"
            )
            record.delivered.clear()
            delivery = Delivery([], {}, {})
        record.notes += share_layers(
            delivery, record.chosen_by_layer, checks.weights, checks.weighted_by
        )
        arrays, metrics, problem = aggregate(
            self.base, server_round, delivery.messages, checks.model
        )
        if problem is not None:
            record.notes.append(problem)
            sound = []  # one of these is to blame, so all of them step back
        record.seconds["aggregation"] = time.monotonic() - start
        if arrays is None:
            record.notes.append("no new model came out of this round: the last one is kept")
        if record.chosen:
            used = delivery.metrics if problem is None else {}
            self._selector.observe(training.plan, record.chosen, used)
            self._selector.end_round(
                training.plan, record.answered, training.sent, sound, not record.delivered
            )
        in_vain = bool(record.chosen) and not record.delivered
        log(WARNING if in_vain else INFO, "\t└──> %s", record.line())
        if not self._told_traffic:  # once a run
            self._told_traffic = log_traffic(record)
        self._records.write()
        if self._loop is not None:
            self._loop.note_train_metrics(server_round - self._offset, metrics)
        if self._resumption is not None:
            self._resumption.note_train_metrics(server_round, metrics)
        self._stop_after_empty_rounds()
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
        node_ids = [self._clients[client] for client in clients]
        if self._configured:  # before the clients were known, to know the type of its messages
            template = same_for_all(self._configured, self.base)
            self._configured = []
            return [message_like(template, node_id, template.content) for node_id in node_ids]
        view = GridView(grid, node_ids)
        with named_base("configure_train", self.base, server_round):
            return list(self.base.configure_train(server_round, arrays, config, view))

    def _message_type(
        self,
        server_round: int,
        arrays: ArrayRecord,
        config: ConfigRecord,
        grid: Grid,
        node_ids: list[int],
    ) -> str:
        """Return the type of the base strategy's messages, which it makes for this round."""
        view = GridView(grid, node_ids)
        with named_base("configure_train", self.base, server_round):
            self._configured = list(self.base.configure_train(server_round, arrays, config, view))
        types = {message.metadata.message_type for message in self._configured}
        return min(types, default=MessageType.TRAIN)

    def _send(
        self,
        messages: TrainingMessages,
        plan: Plan,
        model: Model,
        grid: Grid,
        sketches: SketchCheck | None,
        record: RoundRecord,
    ) -> list[Message]:
        options = self.options
        checks = UpdateChecks.for_base(
            self.base, model, self._common, options.max_weight, options.clip_norm
        )
        self._training = Training(messages, plan, checks, sketches, grid, self._timeout)
        return self._training.send(record)

    def _tell_what_has_no_effect(self) -> None:
        """Log, once a run, that there is nothing to choose or that nobody ever rests."""
        queue_length, num_selected = self.options.queue_length, self.rule.num_selected
        if len(self.history) == 1 and 0 < queue_length < num_selected:
            log(
                WARNING,
                "queue_length is %d and num_selected is %d: a client rests for queue_length / "
                "num_selected rounds, which is less than one, so nobody ever rests. For two rounds "
                "of rest use queue_length=%d",
                queue_length,
                num_selected,
                2 * num_selected,
            )
        if len(self._clients) > num_selected or self._everybody_told or self._roster.excluded:
            return
        self._everybody_told = True
        log(
            WARNING,
            "num_selected is %d and %d clients take part, so all are chosen in each round: there "
            "is nothing to choose. (flwr run simulates 2 clients unless it is told otherwise, as "
            "by --federation-config num-supernodes=10)",
            num_selected,
            len(self._clients),
        )

    def _stop_after_empty_rounds(self) -> None:
        last = self.history[-self.options.max_empty_rounds :]
        if len(last) == self.options.max_empty_rounds and not any(
            record.delivered for record in last
        ):
            reasons = [f"{who}: {why}" for who, why in last[-1].reasons("training").items()]
            if not reasons:
                reasons = last[-1].notes if last[-1].chosen else ["no client was asked to train"]
            untried = set(last[-1].clients).difference(*(record.chosen for record in last))
            raise EmptyRoundsError(
                f"no client delivered an update in {len(last)} rounds in a row. In round "
                f"{last[-1].round}: {'; '.join(reasons[:3])}. "
                f"{len(untried)} of {len(last[-1].clients)} clients were not chosen in these "
                "rounds: with a larger max_empty_rounds, more would have been tried"
            )

    # --- evaluation: the base strategy's, on the clients that take part ------------------------

    @_recorded
    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Have the base strategy configure evaluation, on the clients of this round's roster."""
        number = server_round + self._offset
        messages = self._evaluation.configure(
            number, arrays, config, grid, self._clients, self._timeout
        )
        return [*messages, *self._asking.ask_ahead(number + 1, arrays, self._clients)]

    @_recorded
    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Have the base strategy aggregate the evaluation, sorted by client."""
        own = list(self._asking.sort_out(replies))
        metrics = self._evaluation.aggregate(server_round + self._offset, own, self.history)
        if self._loop is not None:
            self._loop.note_evaluate_metrics(server_round, metrics)
        if self._resumption is not None:
            self._resumption.note_evaluate_metrics(server_round + self._offset, metrics)
        self._records.write()
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
        log(INFO, "\t├──> Selection:")
        log(INFO, "\t│\t├──Rule: %s", self.rule)
        log(INFO, "\t│\t├──Clients per round: %d", self.rule.num_selected)
        log(INFO, "\t│\t├──Asked in the pre-round: %s", asked)
        log(INFO, "\t│\t├──Age-of-Update queue: %d clients", self.options.queue_length)
        log(INFO, "\t│\t└──Seed: %d", self.options.seed)
        log(INFO, "\t├──> Base: %s", type(self.base).__name__)
        self.base.summary()

    def state(self) -> dict[str, Any]:
        """Return all that later choices depend on: JSON values and NumPy arrays."""
        return {
            **self._selector.state(),
            "excluded": dict(self._roster.excluded),
            "layout": self._common.layout,
            "layout-evaluation": self._evaluation.common.layout,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Take up what `state` returned, to go on in the round after."""
        self._selector.restore(state)
        self._roster.excluded = dict(state["excluded"])
        self._common.layout = tuple(state["layout"])
        self._evaluation.common.layout = tuple(state.get("layout-evaluation", ()))

    def restore_history(self, records: list[RoundRecord]) -> None:
        """Take up the records of rounds already done; the file then holds these and no others."""
        self._records.replace(records)

    def remembered(self) -> Remembered:
        """Return what the base strategy and the rule remember, as they are now."""
        return Remembered(self.base, self.rule)

    def settings(
        self, arrays: ArrayRecord, configs: Mapping[str, ConfigRecord]
    ) -> dict[str, Setting]:
        """Return what a run must have in common with one that it takes up, by name."""
        return settings_of(self.rule, self.base, self.options, arrays, configs)

    if not TYPE_CHECKING:  # else a type checker would take any name for an attribute

        def __getattr__(self, name: str) -> Any:
            """Say where an attribute of the base strategy is to be found."""
            hint = ""
            for depth, strategy in enumerate(unwrap(self.__dict__.get("base"))):
                if not name.startswith("__") and hasattr(strategy, name):
                    where = ".".join(["base", *["strategy"] * depth])
                    hint = f", but its {type(strategy).__name__} has: use strategy.{where}.{name}"
                    break
            message = f"{type(self).__name__!r} object has no attribute {name!r}{hint}"
            raise AttributeError(message, name=name, obj=self)

    @property
    def _offset(self) -> int:
        return 0 if self._resumption is None else self._resumption.offset
