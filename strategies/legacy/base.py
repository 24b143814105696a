"""A strategy of Flower's older interface, in the form of a message strategy."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from logging import INFO
from typing import Any

from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.common import EvaluateIns, EvaluateRes, FitIns, FitRes, Parameters, Scalar, log
from flwr.server.client_manager import SimpleClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.criterion import Criterion
from flwr.server.strategy import Strategy as OlderStrategy
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from pncs_flower.protocol import NUM_EXAMPLES

from ..base_strategy import check_limits
from ..errors import TooFewClientsError
from ..replies.arrays import read_array
from .grid import ProxyGrid, only_array

__all__ = ["Failure", "LegacyBase", "to_parameters"]

Instruction = FitIns | EvaluateIns
Outcome = FitRes | EvaluateRes
Failure = tuple[ClientProxy, Any] | BaseException
Outcomes = dict[int, tuple[ClientProxy, Any]]

_NUMPY = "numpy.ndarray"


class LegacyBase(Strategy):
    """Translate between messages and the older interface's instructions and results."""

    # An older client always says how many examples it has trained on.
    weighted_by_key = NUM_EXAMPLES

    def __init__(
        self, older: OlderStrategy, array_names: Sequence[str] | None, grid: ProxyGrid
    ) -> None:
        if not isinstance(older, OlderStrategy):
            raise TypeError(
                f"base is {type(older).__name__}, but must be a strategy of flwr.server.strategy; "
                "strategies of flwr.serverapp.strategy need no bridge: PNCS(FedAvg())"
            )
        self.older = older
        self.parameters = Parameters([], _NUMPY)
        self.instructions: dict[int, Any] = {}  # by node, as the strategy made them last
        self.outcomes: Outcomes = {}
        self.failures: list[Failure] = []  # as Flower's server hands them over
        # What the strategy made of the last outcomes.
        self.aggregated: tuple[Any, dict[str, Scalar]] = (None, {})
        self._grid = grid
        self._names = None if array_names is None else tuple(array_names)

    def check(self, num_selected: int) -> None:
        """Refuse a strategy that could not work with the clients it is given."""
        strategy: object = self.older
        while isinstance(strategy, OlderStrategy):
            limits = ("min_fit_clients", "min_available_clients")
            check_limits(strategy, num_selected, limits, "fit")
            strategy = getattr(strategy, "strategy", None)

    def arrays(self, parameters: Parameters) -> ArrayRecord:
        """Return a model under the names of its arrays."""
        if parameters.tensor_type != _NUMPY:
            raise ValueError(
                f"the model's tensors are of type {parameters.tensor_type!r}, but must be "
                f"{_NUMPY!r}, as flwr.common.ndarrays_to_parameters makes them"
            )
        number = len(parameters.tensors)
        if self._names is not None and len(self._names) != number:
            raise ValueError(f"array_names are {len(self._names)}, but the model has {number}")
        return self._named(parameters.tensors)

    def instruction(self, node_id: int) -> Any:
        """Return what the strategy wants sent to a node.

        Where the clients were asked for summaries, it was asked before they were chosen, and has
        one instruction for all.
        """
        return self.instructions.get(node_id) or next(iter(self.instructions.values()))

    def content(self, instruction: Instruction) -> RecordDict:
        """Return an instruction as the content of a message."""
        arrays, config = self.arrays(instruction.parameters), ConfigRecord({**instruction.config})
        return RecordDict({"arrays": arrays, "config": config})

    def reply(self, message: Message, outcome: Outcome) -> Message:
        """Return a client's result as the reply to a message."""
        numbers = {
            name: value
            for name, value in outcome.metrics.items()
            if isinstance(value, (int, float)) and not isinstance(value, bool)
        }
        metrics = MetricRecord({**numbers, NUM_EXAMPLES: outcome.num_examples})
        content = RecordDict({"metrics": metrics})
        if isinstance(outcome, FitRes):
            content["arrays"] = self._named(outcome.parameters.tensors)
        return Message(content, reply_to=message)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Have the strategy configure training, as messages."""
        return self._messages(self.older.configure_fit, MessageType.TRAIN, server_round, grid)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Have the strategy configure evaluation, as messages."""
        configure = self.older.configure_evaluate
        return self._messages(configure, MessageType.EVALUATE, server_round, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Have the strategy aggregate what the replies hold; the rest counts as failed."""
        # An update's arrays may have been clipped.
        used = {
            reply.metadata.src_node_id: to_parameters(reply.content.array_records["arrays"])
            for reply in replies
        }
        results = []
        for node_id, parameters in used.items():
            proxy, outcome = self.outcomes[node_id]
            results.append((proxy, replace(outcome, parameters=parameters)))
        rejected = [pair for node_id, pair in self.outcomes.items() if node_id not in used]
        self.aggregated = self.older.aggregate_fit(
            server_round, results, [*self.failures, *rejected]
        )
        model, _ = self.aggregated
        return (None if model is None else self.arrays(model)), None

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Have the strategy aggregate the results of evaluation, in the order of the replies."""
        results = [self.outcomes[r.metadata.src_node_id] for r in replies if r.has_content()]
        self.aggregated = self.older.aggregate_evaluate(server_round, results, self.failures)
        return None

    def summary(self) -> None:
        """Log which strategy it is."""
        log(INFO, "\t│\t└──%r", self.older)

    def _messages(
        self,
        configure: Callable[..., Iterable[tuple[ClientProxy, Instruction]]],
        message_type: str,
        server_round: int,
        grid: Grid,
    ) -> list[Message]:
        view = _View(self._grid.proxies[node_id] for node_id in grid.get_node_ids())
        pairs = configure(server_round, self.parameters, view)
        self.instructions = {self._grid.node_id(proxy): ins for proxy, ins in pairs}
        # Most strategies have one instruction for all.
        contents = {id(ins): self.content(ins) for ins in self.instructions.values()}
        return [
            Message(contents[id(ins)], node_id, message_type, group_id=str(server_round))
            for node_id, ins in sorted(self.instructions.items())
        ]

    def _named(self, tensors: Sequence[bytes]) -> ArrayRecord:
        names = self._names or ()
        more = map(str, range(len(names), len(tensors)))
        pairs = zip([*names[: len(tensors)], *more], tensors, strict=True)
        return ArrayRecord({name: _described(data) for name, data in pairs})


def to_parameters(arrays: ArrayRecord) -> Parameters:
    """Return a model without the names of its arrays."""
    return Parameters([array.data for array in arrays.values()], _NUMPY)


class _View(SimpleClientManager):
    """A client manager that shows some of the clients, and does not wait for others."""

    def __init__(self, proxies: Iterable[ClientProxy]) -> None:
        super().__init__()
        self.clients = {proxy.cid: proxy for proxy in proxies}

    def sample(
        self,
        num_clients: int,
        min_num_clients: int | None = None,
        criterion: Criterion | None = None,
    ) -> list[ClientProxy]:
        """Draw from the clients shown."""
        wanted = max(num_clients, min_num_clients or 0)
        if wanted > len(self.clients):
            raise TooFewClientsError(
                f"the base strategy waits for {wanted} clients, but is given {len(self.clients)}: "
                "lower its min_fit_clients, min_evaluate_clients and min_available_clients"
            )
        return super().sample(num_clients, min_num_clients, criterion)


def _described(data: bytes) -> Array:
    """Return an array that knows its dtype and shape; one that cannot be read is left as it is."""
    array = only_array(data)
    try:
        values = read_array(array)
    except ValueError:
        return array
    return Array(dtype=str(values.dtype), shape=values.shape, stype=_NUMPY, data=data)
