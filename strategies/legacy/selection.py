"""The bridge to apps that have not moved to message strategies: selection on an older server.

An older strategy is one of ``flwr.server.strategy``, run by ``start_server`` or by a ``ServerApp``
with a ``server_fn``. It has no exchange of its own with the clients before training, so the
pre-round goes through ``get_properties``. All else is what the message strategies do.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from flwr.app import ConfigRecord, Error, Message
from flwr.common import EvaluateIns, EvaluateRes, FitIns, FitRes, Parameters, Scalar
from flwr.common.constant import ErrorCode
from flwr.server.client_manager import ClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.strategy import Strategy

from pncs_flower.properties import pack_properties
from pncs_flower.protocol import KEPT, MARKER

from ..grids.exchange import content_bytes
from ..grids.releases import set_task_identity
from ..record import RoundRecord
from ..selection import SelectionStrategy
from .base import Failure, LegacyBase, to_parameters
from .grid import ProxyGrid, give_id

__all__ = ["LegacySelection"]

_RUN_ID = 1


class LegacySelection(Strategy):
    """Any selection strategy around a strategy of Flower's older interface.

    Its clients are wrapped by `pncs_flower.clients.legacy.SummaryClient`.

    Parameters
    ----------
    base : flwr.server.strategy.Strategy
        The older strategy: it configures, aggregates and evaluates.
    selection : callable
        The selection strategy, such as `PNCS` or `GradientMemory`.
    array_names : sequence of str, optional (default: None)
        Names of the model's arrays, which the older interface does not know, such as those of a
        PyTorch state dict. Arrays that share a name up to the last dot are one layer. If None,
        they are ``"0"``, ``"1"``, ..., and each is a layer of its own.
    **options
        Those of the selection strategy, except ``checkpoint`` and ``ride_along``, for which the
        older loop of rounds has no place.

    Raises
    ------
    TypeError
        If the base is no older strategy, or an option is ``checkpoint`` or ``ride_along``.
    ValueError
        If the base would wait for more clients than are chosen, or leave some out; and as for the
        selection strategy.

    Examples
    --------
    >>> from flwr.server.strategy import FedAvg
    >>> from pncs_flower.strategies import PNCS
    >>> strategy = LegacySelection(FedAvg(), PNCS, num_selected=2, queue_length=4)
    """

    def __init__(
        self,
        base: Strategy,
        selection: Callable[..., SelectionStrategy],
        *,
        array_names: Sequence[str] | None = None,
        **options: Any,
    ) -> None:
        for name in options.keys() & {"checkpoint", "ride_along"}:
            raise TypeError(
                f"{name} is not for an older server, whose loop of rounds has no place for it: "
                "leave it out, or move the app to flwr.serverapp.strategy"
            )
        self._grid = ProxyGrid()
        self._base = LegacyBase(base, array_names, self._grid)
        self._selection = selection(self._base, **options)
        self._base.check(self._selection.rule.num_selected)
        self._sent: dict[int, Message] = {}

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
        configure = self._selection.configure_train
        pairs = self._configure(configure, server_round, parameters, client_manager)
        chosen: list[tuple[ClientProxy, FitIns]] = []
        for proxy, instruction, message in pairs:
            marker = {k: v for k, v in message.content[MARKER].items() if k != KEPT}
            config = pack_properties(marker, {}, instruction.config)
            # With the weights, even to a client that has its update: its mods may look for them.
            chosen.append((proxy, FitIns(instruction.parameters, config)))
        if chosen:
            self.history[-1].bytes_down["training"] = sum(
                content_bytes(self._base.content(instruction)) for _, instruction in chosen
            )
        return chosen

    def aggregate_fit(
        self,
        server_round: int,
        results: list[tuple[ClientProxy, FitRes]],
        failures: list[Failure],
    ) -> tuple[Parameters | None, dict[str, Scalar]]:
        """Drop the updates that cannot be used; the base aggregates the others, by client."""
        replies = self._replies(results, failures)
        arrays, _ = self._selection.aggregate_train(server_round, replies)
        _, metrics = self._base.aggregated
        return (None if arrays is None else to_parameters(arrays)), metrics

    def configure_evaluate(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> list[tuple[ClientProxy, EvaluateIns]]:
        """Have the base strategy configure evaluation, on the clients that take part."""
        configure = self._selection.configure_evaluate
        pairs = self._configure(configure, server_round, parameters, client_manager)
        return [(proxy, instruction) for proxy, instruction, _ in pairs]

    def aggregate_evaluate(
        self,
        server_round: int,
        results: list[tuple[ClientProxy, EvaluateRes]],
        failures: list[Failure],
    ) -> tuple[float | None, dict[str, Scalar]]:
        """Have the base strategy aggregate the evaluation, sorted by client."""
        self._selection.aggregate_evaluate(server_round, self._replies(results, failures))
        loss, metrics = self._base.aggregated
        return loss, metrics

    def evaluate(
        self, server_round: int, parameters: Parameters
    ) -> tuple[float, dict[str, Scalar]] | None:
        """Have the base strategy evaluate the model on the server."""
        return self._base.older.evaluate(server_round, parameters)

    def _configure(
        self,
        configure: Callable[..., Iterable[Message]],
        server_round: int,
        parameters: Parameters,
        client_manager: ClientManager,
    ) -> list[tuple[ClientProxy, Any, Message]]:
        """Have the selection configure a phase: each client, its instruction and its message."""
        set_task_identity(_RUN_ID)
        self._grid.manager, self._base.parameters = client_manager, parameters
        arrays = self._base.arrays(parameters)
        messages = list(configure(server_round, arrays, ConfigRecord(), self._grid))
        self._sent = {message.metadata.dst_node_id: message for message in messages}
        for message in messages:
            give_id(message)
        return [
            (self._grid.proxies[node_id], self._base.instruction(node_id), message)
            for node_id, message in self._sent.items()
        ]

    def _replies(
        self, results: Iterable[tuple[ClientProxy, Any]], failures: Sequence[Failure]
    ) -> list[Message]:
        """Return what came back, and what did not, as replies to the messages of this phase."""
        outcomes = {self._grid.node_id(proxy): (proxy, outcome) for proxy, outcome in results}
        self._base.outcomes, self._base.failures = outcomes, list(failures)
        replies = [
            self._base.reply(self._sent[node_id], outcome)
            for node_id, (_, outcome) in outcomes.items()
        ]
        # An exception does not say whose it is.
        reason = "; ".join(dict.fromkeys(map(_describe, failures))) or "no result"
        return replies + [
            Message(Error(ErrorCode.UNKNOWN, reason), reply_to=message)
            for node_id, message in self._sent.items()
            if node_id not in outcomes
        ]


def _describe(failure: Failure) -> str:
    if isinstance(failure, BaseException):
        return f"{type(failure).__name__}: {failure}"
    status = failure[1].status
    return f"status {status.code.name}: {status.message}"
