"""The two-phase round: ask for summaries, choose, and let any Flower strategy train the chosen.

`SelectionStrategy.configure_train` and `aggregate_train` are a round from the top to the bottom.
Each phase is a file of `round/`, and an `OpenRound` goes through all of them.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from logging import INFO
from typing import TYPE_CHECKING, Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.common import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from pncs_flower.plain_text import counted

from . import timeouts
from .base_strategy import check_base, hint_at_attribute, same_for_all
from .checks import check_text, check_whole
from .errors import SelectionError
from .grids.polling import polled
from .grids.releases import check_arguments
from .options import SelectionOptions
from .record import Records, RoundListener, RoundRecord, heard
from .replies.metrics import ReplyMetrics
from .replies.model import Model
from .replies.updates import UpdateChecks
from .resume.resumption import Resumption
from .round import evaluation, training
from .round.asking import Asking
from .round.clock import Clock
from .round.combining import Combiner
from .round.open_round import OpenRound
from .round.roster import Roster
from .round.selector import Selector, choose
from .round.waiting import meet_clients
from .round.weights import Weights
from .rule import SelectionRule, check_rule
from .stopping import EvaluateFunction, Loop, ShouldStop, naming_round
from .traffic import Traffic


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
    listeners : list of RoundListener
        Who is told of each round; add your own before `start`.

    Raises
    ------
    ValueError
        If an option is out of range, or the base would wait for more clients than are chosen, or
        leave some out.
    """

    def __init__(self, base: Strategy, rule: SelectionRule, **options: Any) -> None:
        check_rule(rule)
        self.options = SelectionOptions.of(options, type(self))
        self.options.check(rule.num_selected)
        check_base(base, rule.num_selected)
        self.base = base
        self.rule = rule
        self._records = Records(self.options.history_path)
        self.history = self._records.all
        self._roster = Roster(self.options)
        self._clock: Clock | None = None
        if self.options.extra and rule.per_layer:
            raise ValueError(
                f"extra is {self.options.extra}, but the rule chooses for each layer, none of "
                "which may miss: use extra=0, or per_layer=False"
            )
        extra, candidates = self.options.extra, getattr(rule, "num_candidates", None)
        few = candidates is not None and candidates < rule.num_selected + extra
        if extra and few and not rule.chooses_unasked:
            raise ValueError(
                f"extra is {extra} and num_selected {rule.num_selected}, but the rule "
                f"chooses among {candidates} candidates: use more of these, or a smaller extra"
            )
        if self.options.devices is not None:
            self._clock = Clock(self.options, self._roster, rule.num_selected)
        weights = Weights(base)
        self._combiner = Combiner(self.options, rule, base, weights)
        self._selector = Selector(
            rule,
            self.options.clients_in_queue(rule.num_selected),
            self.options.seed,
            weights,
            asks_resting=self._combiner.combination.asks_update,
            extra=self.options.extra,
        )
        self._asking = Asking(self._selector, self._combiner.request, self.options)
        self._checks = UpdateChecks(base, self.options, self.history)
        self._evaluations = ReplyMetrics("evaluation", base, self.options.max_weight)
        self._loop = Loop(self.options.on_record)
        self._traffic = Traffic(rule, self._combiner.asks_besides)
        # What on_record says of the round before is saved with it.
        self.listeners: list[RoundListener] = [self._loop, self._records, self._traffic]
        self._resumption = None
        self._to_forget: list[str] = []
        folder = self.options.checkpoint_folder
        if folder is not None:
            self._resumption = Resumption(folder, self._loop)
            self.listeners.insert(1, self._resumption)  # the round before, as it was left
        self._timeout: float | None = None  # of `start`: a wrapper's loop has its own
        self._open: OpenRound | None = None

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = timeouts.TRAINING,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFunction | None = None,
        should_stop: ShouldStop | None = None,
        **further: Any,
    ) -> Result:
        """Run Flower's loop of rounds; with a checkpoint, those that are not done yet.

        See `flwr.serverapp.strategy.Strategy.start`, which this calls, and which gets all further
        arguments; one that it does not have is a TypeError. ``timeout`` is in seconds.

        ``should_stop(server_round, result) -> bool`` is asked after each round whether to stop
        early, as in Flower 1.43 but with every release. With a checkpoint, the rounds and the
        result are those of the whole run, and a run that has been stopped stays stopped when it is
        started again with a ``should_stop``.
        """
        check_whole(least=0, num_rounds=num_rounds)
        check_arguments(super().start, further)
        if self.history:
            raise SelectionError(
                "this strategy has run before, and remembers who was chosen: make a new one for "
                "another run, or give it checkpoint= to go on with a run that was stopped"
            )
        self._asking.last_round = num_rounds
        self._timeout = timeout
        self._loop.result.arrays = initial_arrays
        result = self._run(
            self._loop.run if self._resumption is None else partial(self._resumption.run, self),
            start=partial(super().start, polled(grid), timeout=timeout, **further),
            num_rounds=num_rounds,
            train_config=train_config,
            evaluate_config=evaluate_config,
            evaluate_fn=naming_round("evaluate_fn", evaluate_fn),
            should_stop=naming_round("should_stop", should_stop),
        )
        self._records.write()  # of its last checkpoint, there may be something to say
        return result

    @heard
    def _run(self, run: Callable[..., Result], **arguments: Any) -> Result:
        self._records.prepare()
        return run(**arguments)

    @heard
    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Carry out the pre-round, choose, and return the training messages for the chosen."""
        round = self._opened(server_round, arrays, config, grid)
        self._combiner.check_model(round)
        meet_clients(round, self._roster, self.rule.num_selected)
        if self._clock is not None:
            self._clock.open(round)
        self._selector.open(round, self._roster)
        if round.pre_round is not None:
            first = round.plan.now.available[: self.rule.num_selected]
            templates = training.configure(round, round.nodes(first).values())
            if not templates:  # the base strategy does not train in this round
                return training.send(round, [])
            self._asking.ask(round, same_for_all(templates, self.base))
        fit = self._combiner.fit(round)
        choice = choose(round, self._selector, self.history, fit)
        self._combiner.check(round, choice)  # before anybody trains
        for listener in self.listeners:
            listener.chosen(round.record, choice)
        if round.pre_round is None:
            templates = training.configure(round, round.nodes(choice.clients).values())
        else:
            round.pre_round.drop_all_but(choice.clients)
        return training.send(round, templates)

    @heard
    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Drop the updates that cannot be used, and have the base aggregate the others."""
        round = self._current(server_round)
        if round.trained:
            raise SelectionError(f"round {round.number} has been aggregated already")
        round.trained = True
        received = training.receive(round, replies)
        with round.timed("aggregation"):
            new, metrics = training.close(round, received, self._checks, self._combiner)
        self._roster.excluded |= round.liars
        self._selector.close(round)
        for listener in self.listeners:
            listener.closed(round.record, metrics)
        training.stop_after_empty_rounds(self.history, self.options.max_empty_rounds)
        return new, metrics

    def _opened(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> OpenRound:
        """Open a round; what cannot work is an error before anybody trains."""
        record = RoundRecord(server_round + self._loop.done, rule=str(self.rule))
        for listener in self.listeners:
            listener.opened(record, arrays)
        self._open = OpenRound(
            base=self.base,
            options=self.options,
            record=record,
            arrays=arrays,
            config=config,
            grid=polled(grid),  # again, for a wrapper around this strategy has a loop of its own
            timeout=self._timeout,
            model=Model(arrays, self.base),
            pre_round=self._asking.pre_round(record.round, arrays),
            clock=self._clock,
        )
        return self._open

    def _current(self, server_round: int) -> OpenRound:
        number = server_round + self._loop.done
        if self._open is None or self._open.number != number:
            raise SelectionError(f"round {number} was not configured by this strategy")
        return self._open

    @heard
    def check_sum(self) -> None:
        """Refuse the sum of the updates in place of each of them, where that is not enough."""
        self._combiner.check_sum()

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Have the base strategy configure evaluation, on the clients of this round's roster."""
        round = self._current(server_round)
        clients: Mapping[str, int] | None = round.clients
        if self._clock is not None:
            clients = self._clock.look_ahead(round)
        evaluation.configure(round, arrays, config)
        return self._asking.ask_ahead(round, arrays, self._roster, clients)

    @heard
    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Have the base strategy aggregate the evaluation, sorted by client."""
        round = self._current(server_round)
        others = self._asking.take_answers(round, replies)
        metrics = evaluation.aggregate(round, others, self._evaluations)
        for listener in self.listeners:
            listener.evaluated(round.record, metrics)
        return metrics

    def summary(self) -> None:
        """Log what the strategy does, and then the base strategy's own summary."""
        asked = "nothing"
        if request := self._combiner.request:
            layers = "all" if request.layers is None else ", ".join(request.layers)
            asked = f"{request.kind}, sketch {request.sketch}, layers {layers}"
            asked += request.besides and f"; sketch {request.besides} of the whole update"
        length = self.options.clients_in_queue(self.rule.num_selected)
        queue = "as long as leaves a choice" if length is None else counted(length, "client")
        log(INFO, "\t├──> Selection:")
        log(INFO, "\t│\t├──Rule: %s", self.rule)
        log(INFO, "\t│\t├──Clients per round: %d", self.rule.num_selected)
        log(INFO, "\t│\t├──Asked in the pre-round: %s", asked)
        log(INFO, "\t│\t├──Combination: %s", self.options.combine)
        log(INFO, "\t│\t├──Age-of-Update queue: %s", queue)
        log(INFO, "\t│\t└──Seed: %d", self.options.seed)
        log(INFO, "\t├──> Base: %s", type(self.base).__name__)
        self.base.summary()

    @property
    def num_clients(self) -> int:
        """How many clients there are, as most of those met say; if they do not, how many these are.

        Those that are not there, and have perhaps never been, are among them.
        """
        return self._roster.most_say() or len(self._roster.clients)

    def asks(self, clients: Sequence[str], arrays: ArrayRecord) -> tuple[int, int]:
        """Return how many of these clients a first round would ask, and their answers' bytes."""
        pre_round = self._asking.pre_round(1, arrays)
        if pre_round is None:
            return 0, 0
        asked = len(self._selector.plan(1, clients).candidates)
        return asked, asked * pre_round.num_bytes

    def forget(self, *clients: str) -> None:
        """Forget clients that have left for good, by their keys: updates, sketches, sizes, turns.

        Call it between rounds, as in ``evaluate_fn``, or before `start`, also where this takes up a
        checkpoint: a round that is open remembers who is in it.
        What their updates have changed in the model stays, and so do the records, which name them.
        With a checkpoint, what is saved of them goes when two rounds more are saved. A client that
        takes part again is a new one; one that is left out for a false sketch stays out.
        """
        check_text(**{f"client {client!r}": client for client in clients})
        self._to_forget += clients  # also where a checkpoint is still to be taken up
        for client in clients:
            self._combiner.forget(client)
            self._selector.forget(client)
            self._roster.forget(client)

    def state(self) -> dict[str, Any]:
        """Return all that later choices depend on: JSON values and NumPy arrays."""
        return {
            **self._selector.state(),
            "excluded": dict(self._roster.excluded),
            "asked-ahead": self._asking.state(),
            "clock": None if self._clock is None else self._clock.state(),
            "combination": self._combiner.state(),
            "layout": self._checks.metrics.layout,
            "layout-evaluation": self._evaluations.layout,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Take up what `state` returned, to go on in the round after."""
        self._selector.restore(state)
        self._roster.excluded = dict(state["excluded"])
        self._asking.restore(state["asked-ahead"])
        if self._clock is not None:
            self._clock.restore(state["clock"])
        self._combiner.restore(state["combination"])
        self._checks.metrics.layout = tuple(state["layout"])
        self._evaluations.layout = tuple(state["layout-evaluation"])
        forgotten, self._to_forget = self._to_forget, []
        self.forget(*forgotten)
        self._to_forget = []

    def restore_history(self, records: list[RoundRecord]) -> None:
        """Take up the records of rounds already done; the file then holds these and no others."""
        self._records.replace(records)
        self._loop.done = len(records)
        self._traffic.told = any(record.delivered for record in records)

    if not TYPE_CHECKING:  # else a type checker would take any name for an attribute

        def __getattr__(self, name: str) -> Any:
            """Say where an attribute of the base strategy is to be found."""
            hint = hint_at_attribute(self.__dict__.get("base"), name)
            message = f"{type(self).__name__!r} object has no attribute {name!r}{hint}"
            raise AttributeError(message, name=name, obj=self)
