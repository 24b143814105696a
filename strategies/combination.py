"""What a combination is: how what the chosen delivered becomes the change of the model.

A selection rule says who sends an update, a combination what is made of the updates. Like a rule,
it knows nothing of Flower, grids or messages.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from pncs_flower.fit import SketchFit
from pncs_flower.protocol import SummaryRequest

from .rule import Round

__all__ = ["Change", "Combination", "Delivery"]


@dataclass(frozen=True)
class Delivery:
    """What there is to combine in a round; its arrays must not be changed.

    Attributes
    ----------
    now : Round
        The round as it was planned, before anybody was ``asked``, with the ``shares`` that are
        known by now; those whose sketch was found to be false have none.
    updates : mapping of str to array
        The update of each client that delivered one: weights before minus weights after, in one
        vector, float32, shape (P,).
    sketches : mapping of str to array
        What each client that was asked sent of its whole update, decoded, shape (r,).
    missing : sequence of str
        The chosen that delivered nothing that can be used.
    chances : mapping of str to float
        The probability with which each of the chosen was drawn, if the rule says so.
    """

    now: Round
    updates: Mapping[str, np.ndarray]
    sketches: Mapping[str, np.ndarray] = field(default_factory=dict)
    missing: Sequence[str] = ()
    chances: Mapping[str, float] = field(default_factory=dict)

    @property
    def weights(self) -> dict[str, float]:
        """The weight of each update in the mean of all that is estimated by them; of sum 1."""
        # Over its chance: else those that are drawn more often would count for more.
        raw = {c: self.now.shares[c] / self.chances.get(c, 1.0) for c in self.updates}
        total = sum(raw.values())
        return {client: weight / total for client, weight in raw.items()}


@dataclass(frozen=True)
class Change:
    """What a round takes from the model's weights.

    Attributes
    ----------
    values : array
        Shape (P,).
    record : mapping
        What the round's record says of it, as JSON values.
    memory : object, optional
        What `Combination.keep` needs of it.
    """

    values: np.ndarray
    record: Mapping[str, Any] = field(default_factory=dict)
    memory: Any = None


class Combination(ABC):
    """A way of combining updates. Subclass it as a dataclass of its parameters.

    A strategy works with a copy of the one it is given, for which `begin` is called.
    """

    asks_update: ClassVar[bool] = False
    """Whether it needs a sketch of each client's update, which `request` is to ask for. Those that
    rest are then asked too, unless the rule asks some, and sketches are verified."""

    def request(self, wanted: SummaryRequest | None) -> SummaryRequest | None:
        """Return what is asked in the pre-round, given what the rule wants; or raise ValueError."""
        return wanted

    def begin(self, folder: Path | None) -> None:  # noqa: B027
        """Prepare to remember; a folder is that of the checkpoint, for what is large."""

    def fit(self, now: Round, sketches: Mapping[str, np.ndarray]) -> SketchFit | None:
        """Return, before the choice, what a rule may choose for."""
        return None

    @abstractmethod
    def combine(self, delivery: Delivery) -> Change | None:
        """Return the change, of at least one update; None leaves the mean to the base strategy."""

    def keep(self, delivery: Delivery, change: Change) -> Iterable[str]:
        """Remember a round whose change was applied; return what its record should note."""
        return ()

    def forget(self, client: str) -> None:  # noqa: B027
        """Forget all that is a client's."""

    def state(self) -> dict[str, Any]:
        """Return all that it remembers: JSON values and NumPy arrays."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:  # noqa: B027
        """Take up what `state` returned."""
