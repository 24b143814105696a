"""When a device is there: pure functions of the simulated time, and for one kind of the round."""

import math
from abc import ABC, abstractmethod
from bisect import bisect_right
from dataclasses import dataclass

from pncs_flower.randomness import generator

from .numbers import check_number, check_probability

DAY = 86_400.0
"""Seconds of a day. Simulated time begins at midnight."""

_PATIENCE = 60.0  # seconds after which a device that is there by chance may be there after all


class Availability(ABC):
    """Whether a device is there at a time, in simulated seconds from the start of the run."""

    @abstractmethod
    def is_there(self, seconds: float, *names: int | str) -> bool:
        """Tell whether the device is there; ``names`` are what a draw is to depend on."""

    def leaves(self, seconds: float) -> float:
        """Return when a device that is asked at a time goes: that time if it has gone already."""
        return math.inf

    @abstractmethod
    def returns(self, seconds: float) -> float:
        """Return when a device that is not there may be there again; infinity for never."""


@dataclass(frozen=True)
class Always(Availability):
    """There at any time."""

    def is_there(self, seconds: float, *names: int | str) -> bool:
        """Return True."""
        return True

    def returns(self, seconds: float) -> float:
        """Return the time itself."""
        return seconds


@dataclass(frozen=True)
class Chance(Availability):
    """There with a probability, drawn anew for each round; who is there stays to its end.

    Where too few are there for a round, the server waits, and it is drawn anew after each minute.
    """

    probability: float

    def __post_init__(self) -> None:
        check_probability("probability", self.probability)

    def is_there(self, seconds: float, *names: int | str) -> bool:
        """Draw, from the names alone."""
        return bool(generator("availability", *names).random() < self.probability)

    def returns(self, seconds: float) -> float:
        """Return the end of a minute's wait; never, with a probability of 0."""
        return seconds + _PATIENCE if self.probability else math.inf


@dataclass(frozen=True)
class Periods(Availability):
    """There for ``on`` seconds, away for ``off`` seconds, and so on, from ``offset`` seconds on.

    It has been so before, too: with an offset of 3 hours of 24, a device that is on for 4 hours is
    there from 3 to 7 o'clock.
    """

    on: float
    off: float
    offset: float = 0.0

    def __post_init__(self) -> None:
        check_number("on", self.on, above=True)
        check_number("off", self.off)
        check_number("offset", self.offset)

    def _place(self, seconds: float) -> float:
        return (seconds - self.offset) % (self.on + self.off)

    def is_there(self, seconds: float, *names: int | str) -> bool:
        """Tell whether the time lies in a period of being there."""
        return self.off == 0 or self._place(seconds) < self.on

    def leaves(self, seconds: float) -> float:
        """Return the end of the period."""
        if self.off == 0:
            return math.inf
        return seconds + max(0.0, self.on - self._place(seconds))

    def returns(self, seconds: float) -> float:
        """Return the beginning of the next period."""
        return seconds + (self.on + self.off - self._place(seconds))


def daily(start: float, hours: float) -> Availability:
    """Return a daily rhythm: there for some hours of each day, from an hour of the day on."""
    check_number("start", start)
    if check_number("hours", hours, above=True) >= 24:
        return Always()
    return Periods(hours * 3600, DAY - hours * 3600, (start % 24) * 3600)


@dataclass(frozen=True)
class Trace(Availability):
    """There in given intervals of time.

    Parameters
    ----------
    intervals : tuple of (float, float)
        From when to when, in seconds, in order and without overlap; the last may end at infinity.
        Where the next begins as one ends, also by ``repeat``, the device stays.
    repeat : float, optional (default: None)
        Seconds after which it all begins again, such as a week; None: it does not.
    """

    intervals: tuple[tuple[float, float], ...]
    repeat: float | None = None

    def __post_init__(self) -> None:
        if not self.intervals:
            raise ValueError("intervals is empty: name at least one time at which the device comes")
        before = -math.inf
        for on, off in self.intervals:
            check_number("on", on)
            if off != math.inf:
                check_number("off", off)
            if not on < off:
                raise ValueError(f"the device comes at {on:g} s and goes at {off:g} s, not later")
            if on < before:
                raise ValueError(f"it comes at {on:g} s, but has not gone before {before:g} s")
            before = off
        if self.repeat is not None:
            check_number("repeat", self.repeat, above=True)
            if self.repeat < before:
                raise ValueError(f"repeat is {self.repeat:g} s, but it goes at {before:g} s only")

    def _place(self, seconds: float) -> tuple[float, int]:
        """Return the time within the trace, and how many intervals have begun by then."""
        place = seconds if self.repeat is None else seconds % self.repeat
        return place, bisect_right([on for on, _ in self.intervals], place)

    def is_there(self, seconds: float, *names: int | str) -> bool:
        """Tell whether the time lies in an interval."""
        place, begun = self._place(seconds)
        return begun > 0 and place < self.intervals[begun - 1][1]

    def leaves(self, seconds: float) -> float:
        """Return the end of the interval, and of those that follow on it without a gap."""
        if not self.is_there(seconds):
            return seconds
        place, begun = self._place(seconds)
        end, following = self.intervals[begun - 1][1], list(self.intervals[begun:])
        if self.repeat is not None:
            again = self.intervals[:begun]
            following += [(on + self.repeat, off + self.repeat) for on, off in again]
        for on, off in following:
            if on != end:
                return seconds + (end - place)
            end = off
        return seconds + (end - place) if self.repeat is None else math.inf  # all is one

    def returns(self, seconds: float) -> float:
        """Return the beginning of the next interval."""
        place, begun = self._place(seconds)
        if begun < len(self.intervals):
            return seconds + (self.intervals[begun][0] - place)
        if self.repeat is None:
            return math.inf
        return seconds + (self.repeat + self.intervals[0][0] - place)
