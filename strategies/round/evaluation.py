"""A round's evaluation: the base strategy's, on the clients that take part, in their order."""

from collections.abc import Iterable, Mapping, Sequence
from logging import INFO

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.common import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from ..base_strategy import least_evaluating, named_base
from ..grids.exchange import expire, plain_reason, shortened
from ..grids.view import GridView
from ..record import RoundRecord
from ..replies.metrics import CommonMetrics, Required

__all__ = ["Evaluation"]

_NAMED = 3  # clients in a note


class Evaluation:
    """The messages of one evaluation, kept until their replies come.

    Parameters
    ----------
    base : Strategy
        Configures and aggregates evaluations.
    max_weight : float
        The most that a reply's weight may be.

    Attributes
    ----------
    common : CommonMetrics
        Makes the replies alike.
    """

    def __init__(self, base: Strategy, max_weight: float) -> None:
        self._base = base
        self._required = Required(Required.by(base, max_weight).weighted_by, max_weight)
        self.common = CommonMetrics("evaluation")
        self._sent: list[Message] = []
        self._clients: dict[int, str] = {}

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
        self._clients = {node_id: client for client, node_id in clients.items()}
        if len(clients) >= least_evaluating(self._base):
            view = GridView(grid, clients.values())
            with named_base("configure_evaluate", self._base, number):
                self._sent = list(self._base.configure_evaluate(number, arrays, config, view))
        if timeout is not None:  # else a wrapper's loop knows it
            expire(self._sent, timeout)
        return self._sent

    def aggregate(
        self, number: int, replies: Iterable[Message], history: Sequence[RoundRecord]
    ) -> MetricRecord | None:
        """Have the base strategy aggregate what it can, sorted by client.

        Parameters
        ----------
        number : int
            The round.
        replies : iterable of Message
            The replies to this evaluation's messages, and perhaps others.
        history : sequence of RoundRecord
            The last takes a note of the clients whose reply could not be used.

        Returns
        -------
        MetricRecord or None
            None if nothing was asked, or nothing can be used.
        """
        sound: dict[str, Message] = {}
        reasons: list[str] = []
        for client, reply in self._in_order(replies).items():
            if reply.has_error():
                reasons.append(f"{client}: {plain_reason(reply.error.reason)}")
                continue
            try:
                self._required.check(reply.content)
            except ValueError as error:
                reasons.append(f"{client}: {shortened(str(error))}")
            else:
                sound[client] = reply
        notes = []
        if reasons:
            more = f"; and {len(reasons) - _NAMED} others" if len(reasons) > _NAMED else ""
            notes.append(f"evaluation: left out are {'; '.join(reasons[:_NAMED])}{more}")
            log(INFO, "Round %d, %s", number, notes[0])
        contents = {client: reply.content for client, reply in sound.items()}
        notes += self.common.unify(contents, self._required.weighted_by)
        if reasons and not sound:
            notes.append("no client's evaluation can be used: there is none")
        if history:
            history[-1].notes += notes
        if reasons and not sound:
            return None
        with named_base("aggregate_evaluate", self._base, number):
            return self._base.aggregate_evaluate(number, list(sound.values()))

    def _in_order(self, replies: Iterable[Message]) -> dict[str, Message]:
        """Return the first reply of each client to these messages, in the order of clients."""
        client_of = {  # only now, for a message has no id before it is sent
            message.metadata.message_id: self._clients.get(
                message.metadata.dst_node_id, f"node {message.metadata.dst_node_id}"
            )
            for message in self._sent
        }
        found: dict[str, Message] = {}
        for reply in replies:
            client = client_of.get(reply.metadata.reply_to_message_id)
            if client is not None:
                found.setdefault(client, reply)
        known = {c: found.pop(c) for c in self._clients.values() if c in found}
        return known | found
