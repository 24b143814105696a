"""The bridge to apps that have not moved to message strategies: selection on an older server.

An older strategy is one of ``flwr.server.strategy``, run by ``start_server`` or by a ``ServerApp``
with a ``server_fn``. It has no exchange of its own with the clients before training, so the
pre-round goes through ``get_properties``. All else is what the message strategies do.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, count
from logging import INFO
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.common import EvaluateIns, FitIns, FitRes, Parameters, Scalar, log
from flwr.server.client_manager import ClientManager, SimpleClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.strategy import Strategy
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy as MessageStrategy

from pncs_flower.messages.arrays import NUMPY
from pncs_flower.plain_text import counted
from pncs_flower.properties import pack_properties
from pncs_flower.protocol import KEPT, MARKER, NUM_EXAMPLES

from ..base_strategy import check_limits
from ..errors import TooFewClientsError
from ..grids.exchange import content_bytes
from ..grids.releases import set_task_identity
from ..record import RoundRecord
from ..selection import SelectionStrategy
from .grid import ProxyGrid, error_reply, give_id, to_array

__all__ = ["LegacySelection"]

_RUN_ID = 1

Answer = tuple[ClientProxy, Any]  # a client, and its result
Failure = Answer | BaseException
Metrics = dict[str, Scalar]


class LegacySelection(Strategy):
    """Any selection strategy around a strategy of Flower's older interface.

    Its clients are wrapped by `pncs_flower.clients.legacy.SummaryClient`.

    Parameters
    ----------
    base : flwr.server.strategy.Strategy
        The older strategy: it configures, aggregates and evaluates.
    selection : callable
        The selection strategy, such as `PNCS` or `GradientMemory`.
    array_names : sequence of str, optional (default: ``["0", "1", ...]``)
        Names of the model's arrays, which the older interface does not know, such as those of a
        PyTorch state dict. Arrays that share a name up to the last dot are one layer.
    **options
        Those of the selection strategy, except ``checkpoint``, ``ride_along`` and ``devices`` (with
        ``deadline`` and ``extra``), for which the older loop of rounds has no place.

    Raises
    ------
    TypeError
        If the base is no older strategy, or such an option is given.
    ValueError
        If the base would wait for more clients than are chosen, or leave some out; and as for the
        selection strategy.

    Examples
    --------
    >>> from flwr.server.strategy import FedAvg
    >>> from pncs_flower.strategies import PNCS
    >>> strategy = LegacySelection(FedAvg(), PNCS, num_selected=2)
    """

    def __init__(
        self,
        base: Strategy,
        selection: Callable[..., SelectionStrategy],
        *,
        array_names: Sequence[str] | None = None,
        **options: Any,
    ) -> None:
        without = ("checkpoint", "deadline", "devices", "extra", "ride_along")
        for name in [name for name in without if name in options]:
            raise TypeError(
                f"{name} is not for an older server, whose loop of rounds has no place for it: "
                "leave it out, or move the app to flwr.serverapp.strategy"
            )
        if not isinstance(base, Strategy):
            raise TypeError(
                f"base is {type(base).__name__}, but must be a strategy of flwr.server.strategy; "
                "strategies of flwr.serverapp.strategy need no bridge: PNCS(FedAvg())"
            )
        self._base = LegacyBase(base, array_names)
        self._selection = selection(self._base, **options)
        self._sent: dict[int, Message] = {}  # in this phase, by node
        inner: object = base
        while isinstance(inner, Strategy):
            limits = ("min_fit_clients", "min_available_clients")
            check_limits(inner, self._selection.rule.num_selected, limits, "fit")
            inner = getattr(inner, "strategy", None)

    @property
    def history(self) -> list[RoundRecord]:
        """One record per round."""
        return self._selection.history

    def initialize_parameters(self, client_manager: ClientManager) -> Parameters | None:
        """Have the base strategy give the initial model."""
        self._selection.summary()
        return self._base.older.initialize_parameters(client_manager)

    def configure_fit(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> list[tuple[ClientProxy, FitIns]]:
        """Carry out the pre-round, choose, and return the instructions for the chosen."""
        given = self._given(parameters, client_manager)
        messages = self._selection.configure_train(server_round, *given)
        chosen: list[tuple[ClientProxy, FitIns]] = []
        for node_id, (proxy, instruction) in self._instructions(messages).items():
            marker = {k: v for k, v in self._sent[node_id].content[MARKER].items() if k != KEPT}
            config = pack_properties(marker, {}, instruction.config)
            # With the weights, even to a client that has its update: its mods may look for them.
            chosen.append((proxy, FitIns(instruction.parameters, config)))
        self.history[-1].bytes_down["training"] = sum(
            content_bytes(self._base.content(instruction)) for _, instruction in chosen
        )
        return chosen

    def aggregate_fit(
        self, server_round: int, results: list[Answer], failures: list[Failure]
    ) -> tuple[Parameters | None, Metrics]:
        """Drop the updates that cannot be used; the base aggregates the others, by client."""
        if len(results) > 1 and len({id(fit.parameters) for _, fit in results}) == 1:
            self._selection.check_sum()  # which SecAgg+ gives as the update of every client
        replies = self._replies(results, failures)
        arrays, _ = self._selection.aggregate_train(server_round, replies)
        _, metrics = self._base.aggregated
        return (None if arrays is None else _to_parameters(arrays)), metrics

    def configure_evaluate(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> list[tuple[ClientProxy, EvaluateIns]]:
        """Have the base strategy configure evaluation, on the clients that take part."""
        given = self._given(parameters, client_manager)
        messages = self._selection.configure_evaluate(server_round, *given)
        return list(self._instructions(messages).values())

    def aggregate_evaluate(
        self, server_round: int, results: list[Answer], failures: list[Failure]
    ) -> tuple[float | None, Metrics]:
        """Have the base strategy aggregate the evaluation, sorted by client."""
        self._selection.aggregate_evaluate(server_round, self._replies(results, failures))
        return self._base.aggregated

    def evaluate(self, server_round: int, parameters: Parameters) -> tuple[float, Metrics] | None:
        """Have the base strategy evaluate the model on the server."""
        return self._base.older.evaluate(server_round, parameters)

    def forget(self, *clients: str) -> None:
        """Forget clients that have left for good, as `SelectionStrategy.forget` does."""
        self._selection.forget(*clients)

    def _given(
        self, parameters: Parameters, client_manager: ClientManager
    ) -> tuple[ArrayRecord, ConfigRecord, Grid]:
        """Return what a message strategy is given to configure a phase."""
        set_task_identity(_RUN_ID)
        self._base.grid.manager = client_manager
        return self._base.arrays(parameters), ConfigRecord(), self._base.grid

    def _instructions(self, messages: Iterable[Message]) -> dict[int, tuple[ClientProxy, Any]]:
        """Return, by node, what the base strategy wants sent in place of these messages."""
        self._sent = {message.metadata.dst_node_id: message for message in messages}
        for message in self._sent.values():
            give_id(message)
        # Where the clients were asked for summaries, it was asked before they were chosen, and has
        # one instruction for all.
        any_of = dict.fromkeys(self._sent, next(iter(self._base.instructions.values()), None))
        instructions = any_of | self._base.instructions
        return {n: (self._base.grid.proxies[n], instructions[n]) for n in self._sent}

    def _replies(self, results: list[Answer], failures: list[Failure]) -> list[Message]:
        """Return what came back, and what did not, as replies to the messages of this phase."""
        base = self._base
        base.answers = {base.grid.node_id(proxy): (proxy, result) for proxy, result in results}
        base.failures, base.aggregated = failures, (None, {})
        # An exception does not say whose it is.
        reason = "; ".join(dict.fromkeys(map(_describe, failures))) or "no result"
        return [
            base.reply(message) or error_reply(message, reason) for message in self._sent.values()
        ]


@dataclass(eq=False)
class LegacyBase(MessageStrategy):
    """A strategy of the older interface, in the form of a message strategy."""

    older: Strategy
    names: Sequence[str] | None
    grid: ProxyGrid = field(default_factory=ProxyGrid)
    # Of the last phase, by node: what the strategy sent, and what came back.
    instructions: dict[int, Any] = field(default_factory=dict)
    answers: dict[int, Answer] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)
    aggregated: tuple[Any, Metrics] = (None, {})

    # An older client always says how many examples it has trained on.
    weighted_by_key = NUM_EXAMPLES

    def arrays(self, parameters: Parameters) -> ArrayRecord:
        """Return a model under the names of its arrays."""
        if parameters.tensor_type != NUMPY:
            raise ValueError(
                f"the model's tensors are of type {parameters.tensor_type!r}, but must be "
                f"{NUMPY!r}, as flwr.common.ndarrays_to_parameters makes them"
            )
        number = len(parameters.tensors)
        if self.names is not None and len(self.names) != number:
            raise ValueError(f"array_names are {len(self.names)}, but the model has {number}")
        return self._named(parameters)

    def content(self, instruction: FitIns | EvaluateIns) -> RecordDict:
        """Return an instruction as the content of a message."""
        arrays, config = self.arrays(instruction.parameters), ConfigRecord({**instruction.config})
        return RecordDict({"arrays": arrays, "config": config})

    def reply(self, message: Message) -> Message | None:
        """Return a client's result, if there is one, as the reply to a message."""
        if message.metadata.dst_node_id not in self.answers:
            return None
        _, result = self.answers[message.metadata.dst_node_id]
        numbers = {
            name: value
            for name, value in result.metrics.items()
            if isinstance(value, (int, float)) and not isinstance(value, bool)
        }
        metrics = MetricRecord({**numbers, NUM_EXAMPLES: result.num_examples})
        content = RecordDict({"metrics": metrics})
        if isinstance(result, FitRes):
            content["arrays"] = self._named(result.parameters)
        return Message(content, reply_to=message)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Have the strategy configure training, as messages."""
        pairs = self.older.configure_fit(server_round, _to_parameters(arrays), self._view(grid))
        return self._messages(MessageType.TRAIN, server_round, pairs)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Have the strategy configure evaluation, as messages."""
        model, view = _to_parameters(arrays), self._view(grid)
        pairs = self.older.configure_evaluate(server_round, model, view)
        return self._messages(MessageType.EVALUATE, server_round, pairs)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Have the strategy aggregate what the replies hold; the rest counts as failed."""
        unused = dict(self.answers)
        results = []
        for reply in replies:
            proxy, result = unused.pop(reply.metadata.src_node_id)
            # An update's arrays may have been clipped.
            parameters = _to_parameters(reply.content.array_records["arrays"])
            results.append((proxy, replace(result, parameters=parameters)))
        failures = [*self.failures, *unused.values()]
        self.aggregated = self.older.aggregate_fit(server_round, results, failures)
        model, _ = self.aggregated
        return (None if model is None else self.arrays(model)), None

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Have the strategy aggregate the results of evaluation, in the order of the replies."""
        results = [self.answers[reply.metadata.src_node_id] for reply in replies]
        self.aggregated = self.older.aggregate_evaluate(server_round, results, self.failures)
        return None

    def summary(self) -> None:
        """Log which strategy it is."""
        log(INFO, "\t│\t└──%r", self.older)

    def _view(self, grid: Grid) -> "_View":
        return _View(self.grid.proxies[node_id] for node_id in grid.get_node_ids())

    def _messages(
        self, message_type: str, server_round: int, pairs: Iterable[tuple[ClientProxy, Any]]
    ) -> list[Message]:
        self.instructions = {self.grid.node_id(proxy): ins for proxy, ins in pairs}
        # Most strategies have one instruction for all.
        contents = {id(ins): self.content(ins) for ins in self.instructions.values()}
        return [
            Message(contents[id(ins)], node_id, message_type, group_id=str(server_round))
            for node_id, ins in sorted(self.instructions.items())
        ]

    def _named(self, parameters: Parameters) -> ArrayRecord:
        given = self.names or ()
        names = chain(given, map(str, count(len(given))))
        return ArrayRecord(dict(zip(names, map(to_array, parameters.tensors), strict=False)))


class _View(SimpleClientManager):
    """A client manager that shows some of the clients, and does not wait for others."""

    def __init__(self, proxies: Iterable[ClientProxy]) -> None:
        super().__init__()
        self.clients = {proxy.cid: proxy for proxy in proxies}

    def wait_for(self, num_clients: int, timeout: int = 0) -> bool:
        """Tell at once where so many clients will never be there."""
        if num_clients > len(self.clients):
            raise TooFewClientsError(
                f"the base strategy waits for {counted(num_clients, 'client')}, but is given "
                f"{len(self.clients)}: lower its min_fit_clients, min_evaluate_clients and "
                "min_available_clients"
            )
        return True

    def sample(self, num_clients: int, *rest: Any, **named: Any) -> list[ClientProxy]:
        """Draw from the clients shown."""
        self.wait_for(num_clients)
        return super().sample(num_clients, *rest, **named)


def _to_parameters(arrays: ArrayRecord) -> Parameters:
    """Return a model without the names of its arrays."""
    return Parameters([array.data for array in arrays.values()], NUMPY)


def _describe(failure: Failure) -> str:
    if isinstance(failure, BaseException):
        return f"{type(failure).__name__}: {failure}"
    status = failure[1].status
    return f"status {status.code.name}: {status.message}"
