"""How a quantity differs between devices, drawn from a seed and the client's key alone."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from pncs_flower.randomness import generator

from .numbers import check_number


class Distribution(ABC):
    """A distribution of numbers above 0 (or at least 0) over devices."""

    @abstractmethod
    def sample(self, rng: np.random.Generator) -> float:
        """Draw one number."""


@dataclass(frozen=True)
class LogNormal(Distribution):
    """Numbers whose logarithm is normal: most near the median, some many times that.

    Parameters
    ----------
    median : float
        Half of all devices have less.
    sigma : float
        Standard deviation of the natural logarithm, at least 0: of all devices, 90% lie between
        the median divided and multiplied by exp(1.645 sigma).
    """

    median: float
    sigma: float

    def __post_init__(self) -> None:
        check_number("median", self.median, above=True)
        check_number("sigma", self.sigma)

    def sample(self, rng: np.random.Generator) -> float:
        """Draw one number."""
        return float(self.median * np.exp(self.sigma * rng.standard_normal()))


@dataclass(frozen=True)
class Uniform(Distribution):
    """Any number between two, each as likely as any other."""

    low: float
    high: float

    def __post_init__(self) -> None:
        check_number("low", self.low)
        check_number("high", self.high, least=self.low)

    def sample(self, rng: np.random.Generator) -> float:
        """Draw one number."""
        return float(rng.uniform(self.low, self.high))


def drawn(quantity: float | Distribution, seed: int, name: str, client: str) -> float:
    """Return a client's value of a quantity, which a plain number is for all of them."""
    # Each quantity has a stream of its own, so that one more or less leaves the others as they are.
    if isinstance(quantity, Distribution):
        return quantity.sample(generator(seed, "devices", name, client))
    return float(quantity)
