"""The mean of what was delivered."""

from dataclasses import dataclass

from ..combination import Change, Combination, Delivery
from .store import weighted_sum

__all__ = ["Mean"]


@dataclass(frozen=True)
class Mean(Combination):
    """Leave the updates as they are: the base strategy averages those that were delivered.

    Where the rule has drawn some clients more often than others, each update weighs by its client's
    weight over this chance: else what makes a client large would count twice.
    """

    def combine(self, delivery: Delivery) -> Change | None:
        """Return the mean if the rule has drawn the clients; else leave it to the base strategy."""
        if not delivery.chances:
            return None
        weights = delivery.weights
        return Change(weighted_sum([*delivery.updates.values()], [*weights.values()]))
