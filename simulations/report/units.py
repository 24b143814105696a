"""Units in which a person reads times and bytes."""

from typing import NamedTuple


class Unit(NamedTuple):
    """A unit, and how many of the smallest it is."""

    name: str
    size: float


ONES = (Unit("", 1),)
SECONDS = (Unit("s", 1), Unit("min", 60), Unit("h", 3600), Unit("days", 86400))
BYTES = (Unit("bytes", 1), Unit("kB", 1e3), Unit("MB", 1e6), Unit("GB", 1e9), Unit("TB", 1e12))


def unit_for(largest: float, units: tuple[Unit, ...]) -> Unit:
    """Return the largest unit of which there are at least two, for values up to the largest."""
    return next((unit for unit in reversed(units) if largest >= 2 * unit.size), units[0])


def in_unit(value: float, unit: Unit) -> str:
    """Return a value in a unit, in three digits or all of those before the point."""
    scaled = value / unit.size
    return f"{scaled:,.0f}" if scaled >= 100 else f"{scaled:.3g}"


def readable(value: float, units: tuple[Unit, ...]) -> str:
    """Return a value with the unit in which it reads best."""
    unit = unit_for(value, units)
    return f"{in_unit(value, unit)} {unit.name}".rstrip()
