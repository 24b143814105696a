"""Tells early of a base strategy whose clients send something else than the model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from flwr.serverapp.strategy import Strategy

from ..base_strategy import averages_models
from ..errors import SelectionError
from ..record import RoundRecord

__all__ = ["OtherForms"]

_ENOUGH = 2  # clients: one alone may be at fault itself


@dataclass
class OtherForms:
    """The clients whose updates had not the form of the model, before there was one that had.

    A strategy with control variates, or with compressed updates, gets other arrays from its clients
    than it sends them. Each of them would be left out, and the run end only after some empty
    rounds. Flower's own strategies all take models, so there it is the clients that are at fault.
    """

    base: Strategy
    _seen: dict[str, str] = field(default_factory=dict)

    def check(self, others: Mapping[str, str], history: Sequence[RoundRecord]) -> None:
        """Take note of a round's updates of another form."""
        if averages_models(self.base) or any(record.delivered for record in history):
            return
        self._seen |= others
        reasons = set(self._seen.values())
        if len(self._seen) >= _ENOUGH and len(reasons) == 1:
            raise SelectionError(
                f"the updates of clients {', '.join(self._seen)} have not the form of the model: "
                f"{reasons.pop()}. If {type(self.base).__name__} takes something else from its "
                "clients than the model that it sends (control variates, compressed updates), it "
                "cannot be used with a selection strategy, which compares each update with the "
                "model. What fits into numbers can be sent beside the model, in the metrics"
            )
