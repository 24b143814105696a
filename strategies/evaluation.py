"""A round's evaluation: the base strategy's, on the clients that take part, in their order."""

from collections.abc import Iterable, Mapping

from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from .base import least_evaluating
from .exchange import expire
from .grid_view import GridView

__all__ = ["Evaluation"]


class Evaluation:
    """The messages of one evaluation, kept until their replies come.

    Parameters
    ----------
    base : Strategy
        Configures and aggregates evaluations.
    """

    def __init__(self, base: Strategy) -> None:
        self._base = base
        self._sent: list[Message] = []
        self._order: dict[int, int] = {}

    def configure(
        self,
        number: int,
        arrays: ArrayRecord,
        config: ConfigRecord,
        grid: Grid,
        clients: Mapping[str, int],
        timeout: float | None,
    ) -> list[Message]:
        """Return the messages of a round's evaluation.

        Parameters
        ----------
        number : int
            The round.
        arrays : ArrayRecord
            The model.
        config : ConfigRecord
            For the clients.
        grid : Grid
            The grid.
        clients : mapping of str to int
            Node ids of the clients that take part, by key, in order.
        timeout : float or None
            Seconds for the replies, if they are known.

        Returns
        -------
        list of Message
            Empty if too few clients take part: the base strategy would wait for more.
        """
        self._sent = []
        self._order = {node_id: place for place, node_id in enumerate(clients.values())}
        if len(clients) >= least_evaluating(self._base):
            view = GridView(grid, clients.values())
            self._sent = list(self._base.configure_evaluate(number, arrays, config, view))
        if timeout is not None:  # else a wrapper's loop knows it
            expire(self._sent, timeout)
        return self._sent

    def in_order(self, replies: Iterable[Message]) -> list[Message]:
        """Return the replies to these messages, sorted by client."""
        last = len(self._order)
        place = {  # only now, for a message has no id before it is sent
            message.metadata.message_id: self._order.get(message.metadata.dst_node_id, last)
            for message in self._sent
        }
        own = [reply for reply in replies if reply.metadata.reply_to_message_id in place]
        return sorted(own, key=lambda reply: place[reply.metadata.reply_to_message_id])
