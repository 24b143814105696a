"""Exchanges on Flower's own grids, without the time that is lost in them.

On a SuperLink, Flower looks for replies every 3 seconds: half of that is waited in vain in each
exchange, on average. In a simulation, Flower checks all open messages for each client, over and
over: with 1,000 clients, that takes longer than all else.
"""

import os
import time
from collections.abc import Iterable
from typing import Any

from flwr.app import Message
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from pncs_flower.plain_text import plain_reason

from .. import timeouts
from ..errors import DeadWorkerError
from .view import GridWrapper

_SIMULATED = {"HttpGrid": False, "InMemoryGrid": True}
# Of so many clients times messages, a scan takes Flower longer than it should.
_MANY = 1000
# Messages that are open at once, at first: more than the workers answer between two scans.
_WINDOW = max(24, 4 * (os.cpu_count() or 1))
# What Ray says of a worker that will not answer any more; of one whose node is gone, the latter.
_DEAD = ("ActorDiedError", "ActorUnavailableError")


def polled(grid: Grid) -> Grid:
    """Return a grid around one of Flower's own; a user's, which may do more, as it is."""
    kind = type(grid)
    if kind.__module__.startswith("flwr.") and kind.__name__ in _SIMULATED:
        simulated = _SIMULATED[kind.__name__]
        if simulated:
            _scan_less(getattr(grid, "state", None))
        return PollingGrid(grid, simulated)
    return grid


def _scan_less(state: Any) -> None:
    """Have a simulation's engine check open messages only for the clients that they are for."""
    # Ten times a second it asks for each client's next message. Where it keeps them is nothing
    # that a release of Flower promises: if it is not there, it scans as it always does.
    if not hasattr(state, "message_ins_store") or "get_message_ins" in vars(state):
        return
    look = state.get_message_ins

    def get_message_ins(node_id: int, *args: Any, **kwargs: Any) -> Any:
        for message in list(state.message_ins_store.values()):
            if message.metadata.dst_node_id == node_id and not message.metadata.delivered_at:
                return look(node_id, *args, **kwargs)
        return []

    state.get_message_ins = get_message_ins


class PollingGrid(GridWrapper):
    """A grid that looks for replies often at first, and less often while there are none."""

    # In a simulation, at most one of many messages to each client is open, and few in all: others
    # are pushed as replies come. (A SuperNode, on the other hand, finds its next message at once
    # if it is there, and else sleeps.) And a dead worker ends the run.

    def __init__(self, grid: Grid, simulated: bool = False) -> None:
        super().__init__(grid)
        self.simulated = simulated
        self.arrived: dict[str, float] = {}  # when replies came of the last exchange, or the open

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Push messages, and pull their replies until all are there or the time is up."""
        start = time.monotonic()
        self.arrived.clear()
        under_way = OpenMessages(self, messages)
        replies: list[Message] = []
        while True:
            replies += under_way.look()
            if not under_way:
                return replies
            left = float("inf") if timeout is None else timeout - (time.monotonic() - start)
            if left <= 0:
                under_way.give_up()
                return replies
            time.sleep(min(under_way.pause(), left))

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Pull messages from the real grid; see `check_workers`."""
        replies = list(self._grid.pull_messages(message_ids))
        self.check_workers(replies)
        return replies

    def check_workers(self, replies: Iterable[Message]) -> None:
        """Stop the run if a reply says that a worker process of the simulation has died."""
        if not self.simulated:  # on a SuperLink, an error is what some node says
            return
        for reply in replies:
            if not reply.has_error() or reply.error.code != ErrorCode.UNKNOWN:
                continue
            # Flower goes on giving messages to a dead worker, so that soon all clients would fail.
            if any(name in str(reply.error.reason) for name in _DEAD):
                raise DeadWorkerError(
                    "a worker process of the simulation has died. Why, the log above may say: too "
                    "little memory (give each client more CPUs, so that fewer run at once), native "
                    "code that crashed in the app, a signal, or that its node of the cluster is "
                    "gone. Then start again: a run that was saved goes on where it stopped. Ray "
                    "says: "
                    f"{plain_reason(reply.error.reason)}"
                )


class OpenMessages:
    """Messages whose replies are looked for; true while there are any."""

    def __init__(self, grid: PollingGrid, messages: Iterable[Message] = ()) -> None:
        self._grid = grid
        self._ahead: list[Message] = []
        self._waiting: dict[str, int] = {}  # node of each open message
        self._last = self._grown = time.monotonic()
        self.add(messages)

    def __bool__(self) -> bool:
        return bool(self._waiting or self._ahead)

    def add(self, messages: Iterable[Message]) -> None:
        """Have more messages pushed at the next look."""
        self._ahead += messages
        nodes = {*self._waiting.values(), *(m.metadata.dst_node_id for m in self._ahead)}
        number = len(self._ahead) + len(self._waiting)
        self._many = self._grid.simulated and len(nodes) * number > _MANY
        self._window = _WINDOW if self._many else number

    def look(self) -> list[Message]:
        """Push what there is room for, and return the replies that are there."""
        if self._ahead and len(self._waiting) < self._window:
            self._push()
        found = list(self._grid.pull_messages(list(self._waiting))) if self._waiting else []
        for reply in found:
            self._waiting.pop(reply.metadata.reply_to_message_id, None)
        now = time.monotonic()
        for reply in found:
            self._grid.arrived[reply.metadata.reply_to_message_id] = now
        if found:
            self._last = self._grown = now
        elif now - self._grown > timeouts.IDLE:
            self._window, self._grown = 2 * self._window, now
        return found

    def pause(self) -> float:
        """Return the seconds until the next look: a share of the time since the last reply."""
        simulated = self._grid.simulated
        least = timeouts.LEAST_PAUSE_SIMULATED if simulated else timeouts.LEAST_PAUSE
        least += timeouts.PAUSE_PER_MESSAGE * len(self._waiting)
        share = timeouts.PAUSE_SHARE * (time.monotonic() - self._last)
        return min(max(least, share), timeouts.MOST_PAUSE)

    def give_up(self) -> None:
        """Wait no more. Those ahead have expired, but every message is to have an id."""
        self._grid.push_messages(self._ahead)

    def _push(self) -> None:
        """Push as many as the window has room for."""
        chosen: list[Message] = []
        rest: list[Message] = []
        busy = set(self._waiting.values())
        for message in self._ahead:
            node_id = message.metadata.dst_node_id
            room = len(self._waiting) + len(chosen) < self._window
            fits = room and not (self._many and node_id in busy)
            (chosen if fits else rest).append(message)
            busy.add(node_id)
        # A message that is not accepted has no id, and there is nothing to wait for.
        for message, message_id in zip(chosen, self._grid.push_messages(chosen), strict=True):
            if message_id:
                self._waiting[message_id] = message.metadata.dst_node_id
        self._ahead = rest
