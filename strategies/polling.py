"""Replies of a deployment are looked for as soon as they may be there.

Flower's grid of a deployment looks every 3 seconds. A round has several exchanges, and each of them
waits for half of that in vain on average, and asks for one more where a pre-round is held.
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
    """Return a grid that looks for replies more often, if this is Flower's own for deployments.

    Any other grid is returned as it is: that of a simulation looks often enough, and a grid of the
    user's own may do more than its parts do.
    """
    kind = type(grid)
    if kind.__name__ == "HttpGrid" and kind.__module__.startswith("flwr."):
        return PollingGrid(grid)
    return grid


class PollingGrid(GridWrapper):
    """A grid that looks for replies every 0.2 seconds at first, and less often as time goes on.

    The pause is a twentieth of the time waited, and at most Flower's 3 seconds. So an exchange
    takes at most 5% or 0.2 seconds longer than it must, and a client that trains for an hour costs
    no more requests than it would otherwise.

    Parameters
    ----------
    grid : Grid
        The real grid.
    """

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Push messages, and pull their replies until all are there or the time is up."""
        # A message that could not be pushed has no id, and there is nothing to wait for.
        waiting = {message_id for message_id in self.push_messages(messages) if message_id}
        start = time.monotonic()
        replies: list[Message] = []
        while waiting:
            for reply in self.pull_messages(waiting):
                replies.append(reply)
                waiting.discard(reply.metadata.reply_to_message_id)
            waited = time.monotonic() - start
            left = float("inf") if timeout is None else timeout - waited
            if not waiting or left <= 0:
                break
            time.sleep(min(max(_LEAST, _SHARE * waited), _MOST, left))
        return replies
