"""Checks of what devices are made of: each error names the value and what it must be."""

import math

_LEAST, _MOST = 1e-15, 1e15  # of rates and times, so that no sum of times is infinite


def check_number(name: str, value: object, *, least: float = 0.0, above: bool = False) -> float:
    """Return a finite number as a float, or raise TypeError or ValueError."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} is {value!r}, but must be a number")
    if math.inf > value > _MOST:  # a whole number may have more digits than can be shown
        raise ValueError(f"{name} is above {_MOST:g}, which is the most that it may be")
    fits = value > least if above else value >= least
    if not (-math.inf < value < math.inf and fits):
        words = "above" if above else "at least"
        raise ValueError(f"{name} is {value}, but must be finite and {words} {least:g}")
    if above and value < _LEAST:
        raise ValueError(f"{name} is {value}, but must be at least {_LEAST:g}")
    return float(value)


def check_probability(name: str, value: object, *, most: float = 1.0) -> float:
    """Return a probability as a float, or raise TypeError or ValueError."""
    number = check_number(name, value)
    if number > most:
        raise ValueError(f"{name} is {value}, but must be at most {most:g}")
    return number
