"""Grids around a grid: one that changes nothing, and one that shows only some of the nodes."""

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from flwr.serverapp import Grid

from pncs_flower.plain_text import counted

from .. import timeouts
from ..errors import TooFewClientsError
from .releases import HAS_NODES

if TYPE_CHECKING:
    from flwr.proto.node_pb2 import NodeInfo


def _handed_on(name: str) -> Any:
    """Return a method that calls the wrapped grid's method of the same name."""

    def method(self: "GridWrapper", *args: Any, **kwargs: Any) -> Any:
        return getattr(self._grid, name)(*args, **kwargs)

    return method


class GridWrapper(Grid):
    """A grid that hands everything on to another one, for others to build on."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    get_node_ids = _handed_on("get_node_ids")
    push_messages = _handed_on("push_messages")
    pull_messages = _handed_on("pull_messages")
    send_and_receive = _handed_on("send_and_receive")
    set_run = _handed_on("set_run")
    create_message = _handed_on("create_message")
    run = property(lambda self: self._grid.run)
    if HAS_NODES:
        get_nodes = _handed_on("get_nodes")


class GridView(GridWrapper):
    """A grid whose nodes are a fixed list; a strategy that waits for more is told so."""

    def __init__(self, grid: Grid, node_ids: Iterable[int]) -> None:
        super().__init__(grid)
        self._node_ids = list(node_ids)
        self._looks: list[float] = []

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
        """Stop a strategy that waits for more nodes: a view never grows."""
        # One that computes for long looks a few times; one that waits, every few seconds or
        # oftener.
        self._looks.append(time.monotonic())
        seconds = self._looks[-1] - self._looks[0]
        if len(self._looks) > timeouts.BASE_LOOKS and seconds > timeouts.BASE_PATIENCE:
            raise TooFewClientsError(
                f"the base strategy is given {counted(len(self._node_ids), 'client')}, but waits "
                f"for more: it has looked for them {len(self._looks)} times in {seconds:.0f} s. "
                "Lower its min_train_nodes, min_evaluate_nodes and min_available_nodes"
            )
