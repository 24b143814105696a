"""Grids around a grid: one that changes nothing, and one that shows only some of the nodes."""

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from .. import timeouts
from ..errors import TooFewClientsError
from .releases import HAS_NODES, Run

if TYPE_CHECKING:
    from flwr.proto.node_pb2 import NodeInfo

__all__ = ["GridView", "GridWrapper"]


class GridWrapper(Grid):
    """A grid that hands everything on to another one, for others to build on."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def get_node_ids(self) -> Iterable[int]:
        """Return the nodes of the real grid."""
        return self._grid.get_node_ids()

    if HAS_NODES:

        def get_nodes(self) -> "Iterable[NodeInfo]":
            """Return what the real grid tells of its nodes."""
            return self._grid.get_nodes()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Push messages on the real grid."""
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Pull messages from the real grid."""
        return self._grid.pull_messages(message_ids)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Exchange messages on the real grid."""
        return self._grid.send_and_receive(messages, timeout=timeout)

    @property
    def run(self) -> Run:
        """Return the run of the real grid."""
        return self._grid.run

    def set_run(self, run: Run) -> None:
        """Set the run of the real grid."""
        self._grid.set_run(run)

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Create a message on the real grid."""
        return self._grid.create_message(content, message_type, dst_node_id, group_id, ttl)


class GridView(GridWrapper):
    """A grid whose nodes are a fixed list; a strategy that waits for more is told so."""

    def __init__(self, grid: Grid, node_ids: Iterable[int]) -> None:
        super().__init__(grid)
        self._node_ids = list(node_ids)
        self._first_look = 0.0
        self._looks = 0

    def get_node_ids(self) -> Iterable[int]:
        """Return the nodes of this view."""
        self._note_look()
        return list(self._node_ids)

    if HAS_NODES:

        def get_nodes(self) -> "Iterable[NodeInfo]":
            """Return what the real grid tells of the nodes of this view, in their order."""
            self._note_look()
            there = {node.node_id: node for node in self._grid.get_nodes()}
            return [there[node_id] for node_id in self._node_ids if node_id in there]

    def _note_look(self) -> None:
        """Stop a strategy that waits for more nodes: a view never grows.

        One that computes for long looks a few times; one that waits, every few seconds or oftener.
        """
        now = time.monotonic()
        if self._looks == 0:
            self._first_look = now
        self._looks += 1
        if self._looks > timeouts.BASE_LOOKS and now - self._first_look > timeouts.BASE_PATIENCE:
            raise TooFewClientsError(
                f"the base strategy waits for more than the {len(self._node_ids)} clients that it "
                f"is given: it has looked for them {self._looks} times in "
                f"{now - self._first_look:.0f} s. Lower its min_train_nodes, min_evaluate_nodes "
                "and min_available_nodes"
            )
