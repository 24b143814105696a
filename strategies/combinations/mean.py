"""The mean of what was delivered, as the base strategy takes it."""

from dataclasses import dataclass

from ..combination import Combination, Delivery

__all__ = ["Mean"]


@dataclass(frozen=True)
class Mean(Combination):
    """Leave the updates as they are: the base strategy averages those that were delivered."""

    def combine(self, delivery: Delivery) -> None:
        """Leave it to the base strategy."""
