"""Exchanges on Flower's own grids, without the time that is lost in them.

On a SuperLink, Flower looks for replies every 3 seconds: half of that is waited in vain in each
exchange, on average. In a simulation, Flower scans all messages that are not yet answered for each
client, over and over, so that an exchange with two messages for each client takes four times as
long as one with one.
"""

import time
from collections.abc import Iterable

from flwr.app import Message
from flwr.serverapp import Grid

from .grid_view import GridWrapper

__all__ = ["PollingGrid", "polled"]

_LEAST, _MOST = 0.2, 3.0
_SHARE = 0.05


def polled(grid: Grid) -> Grid:
    """Return a grid around one of Flower's own; any other grid as it is.

    A grid of the user's own may do more than its parts do.
    """
    kind = type(grid)
    if kind.__module__.startswith("flwr."):
        if kind.__name__ == "HttpGrid":
            return PollingGrid(grid)
        if kind.__name__ == "InMemoryGrid":
            return PollingGrid(grid, least_pause=0.1, one_at_a_time=True)
    return grid


class PollingGrid(GridWrapper):
    """A grid that looks for replies often at first, and less often while there are none.

    The pause is a twentieth of the time since the last reply, and at most Flower's 3 seconds. So
    an exchange takes at most 5% or ``least_pause`` longer than it must, and a client that trains
    for an hour costs no more requests than it would otherwise.

    Parameters
    ----------
    grid : Grid
        The real grid.
    least_pause : float (default: 0.2)
        Seconds between two looks, at least.
    one_at_a_time : bool (default: False)
        Push a second message to a client when it has answered the first. A SuperNode, on the
        other hand, finds its next message at once if it is there, and else sleeps.
    """

    def __init__(
        self, grid: Grid, least_pause: float = _LEAST, one_at_a_time: bool = False
    ) -> None:
        super().__init__(grid)
        self._least_pause = least_pause
        self._one_at_a_time = one_at_a_time

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Push messages, and pull their replies until all are there or the time is up."""
        ahead = list(messages)
        node_of: dict[str, int] = {}  # of the messages that wait for a reply
        replies: list[Message] = []
        start = last = time.monotonic()
        while True:
            ahead = self._push(ahead, node_of)
            found = list(self.pull_messages(node_of)) if node_of else []
            for reply in found:
                replies.append(reply)
                node_of.pop(reply.metadata.reply_to_message_id, None)
            now = time.monotonic()
            left = float("inf") if timeout is None else timeout - (now - start)
            if not (node_of or ahead):
                return replies
            if left <= 0:
                # They have expired, but every message is to have an id.
                self.push_messages(ahead)
                return replies
            if found:
                last = now
            if not (found and ahead):
                pause = max(self._least_pause, _SHARE * (now - last))
                time.sleep(min(pause, _MOST, left))

    def _push(self, messages: list[Message], node_of: dict[str, int]) -> list[Message]:
        """Push what may be pushed now, and return the rest."""
        if not messages:
            return []
        chosen, rest, busy = [], [], set(node_of.values())
        for message in messages:
            node_id = message.metadata.dst_node_id
            if self._one_at_a_time and node_id in busy:
                rest.append(message)
            else:
                chosen.append(message)
                busy.add(node_id)
        # A message that is not accepted has no id, and there is nothing to wait for.
        accepted = {message_id for message_id in self.push_messages(chosen) if message_id}
        node_of |= {
            message.metadata.message_id: message.metadata.dst_node_id
            for message in chosen
            if message.metadata.message_id in accepted
        }
        return rest
