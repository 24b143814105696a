"""Exchanges on Flower's own grids, without the time that is lost in them.

On a SuperLink, Flower looks for replies every 3 seconds: half of that is waited in vain in each
exchange, on average. In a simulation, Flower scans all open messages for each client, over and
over, so that an exchange with two messages for each client takes four times as long as one with
one, and twice as long as two such exchanges.
"""

import time
from collections.abc import Iterable

from flwr.app import Message
from flwr.serverapp import Grid

from .grid_view import GridWrapper

__all__ = ["PollingGrid", "polled"]

_MOST = 3.0
_SHARE = 0.05
# What a look costs grows with the messages that are open.
_PER_MESSAGE = 0.001
# One scan of so many clients times messages takes Flower as long as its pause between two scans,
# a tenth of a second. Below, a wave of its own takes longer than what it saves.
_MANY = 1000


def polled(grid: Grid) -> Grid:
    """Return a grid around one of Flower's own; any other grid as it is.

    A grid of the user's own may do more than its parts do.
    """
    kind = type(grid)
    if kind.__module__.startswith("flwr."):
        if kind.__name__ == "HttpGrid":
            return PollingGrid(grid)
        if kind.__name__ == "InMemoryGrid":
            return PollingGrid(grid, least_pause=0.02, in_waves=True)
    return grid


class PollingGrid(GridWrapper):
    """A grid that looks for replies often at first, and less often while there are none.

    The pause is a twentieth of the time since the last reply, at least ``least_pause`` and a
    millisecond for each open message, and at most Flower's 3 seconds. So an exchange takes little
    longer than it must, and a client that trains for an hour costs no more requests than it would
    otherwise.

    Parameters
    ----------
    grid : Grid
        The real grid.
    least_pause : float (default: 0.2)
        Seconds between two looks, at least.
    in_waves : bool (default: False)
        Where there are many messages, push one to each client, and the second ones when all have
        answered. A SuperNode, on the other hand, finds its next message at once if it is there, and
        else sleeps.
    """

    def __init__(self, grid: Grid, least_pause: float = 0.2, in_waves: bool = False) -> None:
        super().__init__(grid)
        self._least_pause = least_pause
        self._in_waves = in_waves

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Push messages, and pull their replies until all are there or the time is up."""
        ahead = list(messages)
        waiting: set[str] = set()
        replies: list[Message] = []
        start = last = time.monotonic()
        while True:
            if ahead and not waiting:
                ahead = self._push(ahead, waiting)
            found = list(self.pull_messages(waiting)) if waiting else []
            for reply in found:
                replies.append(reply)
                waiting.discard(reply.metadata.reply_to_message_id)
            now = time.monotonic()
            left = float("inf") if timeout is None else timeout - (now - start)
            if not (waiting or ahead):
                return replies
            if left <= 0:
                # They have expired, but every message is to have an id.
                self.push_messages(ahead)
                return replies
            if found:
                last = now
            least = self._least_pause + _PER_MESSAGE * len(waiting)
            pause = max(least, _SHARE * (now - last))
            time.sleep(min(pause, _MOST, left))

    def _push(self, messages: list[Message], waiting: set[str]) -> list[Message]:
        """Push a wave, or all, and return the rest."""
        chosen: list[Message] = []
        rest: list[Message] = []
        busy: set[int] = set()
        nodes = {message.metadata.dst_node_id for message in messages}
        in_waves = self._in_waves and len(nodes) * len(messages) > _MANY
        for message in messages:
            node_id = message.metadata.dst_node_id
            (rest if in_waves and node_id in busy else chosen).append(message)
            busy.add(node_id)
        # A message that is not accepted has no id, and there is nothing to wait for.
        waiting.update(message_id for message_id in self.push_messages(chosen) if message_id)
        return rest
