"""Checks of arguments: each error names the argument, its value, and what it must be."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any


def given(**values: Any) -> dict[str, Any]:
    """Return what is not None."""
    return {name: value for name, value in values.items() if value is not None}


def _check_numbers(words: str, allowed: Callable[[float], bool]) -> Callable[..., None]:
    """Return a check that refuses what is not a number, or not one of those in words."""

    def check(**numbers: object) -> None:
        for name, value in numbers.items():
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise TypeError(f"{name} is {value!r}, but must be a number")
            if not allowed(value):
                raise ValueError(f"{name} is {value}, but must be {words}")

    return check


check_share = _check_numbers("a share from 0 to 1", lambda value: 0 <= value <= 1)
check_factor = _check_numbers("above 0 and at most 1", lambda value: 0 < value <= 1)
check_above_zero = _check_numbers("above 0", lambda value: value > 0)  # perhaps infinite
check_not_negative = _check_numbers("finite and at least 0", lambda value: 0 <= value < math.inf)
check_seconds = _check_numbers("a number of seconds above 0", lambda value: 0 < value < math.inf)


def _check_kind(kind: type, words: str) -> Callable[..., None]:
    """Return a check that refuses what is of another kind."""

    def check(**values: object) -> None:
        for name, value in values.items():
            if not isinstance(value, kind):
                raise TypeError(f"{name} is {value!r}, but must be {words}")

    return check


check_flags = _check_kind(bool, "True or False")
check_text = _check_kind(str, "text")


def check_whole(least: int | None = None, **numbers: object) -> None:
    """Refuse what is not a whole number, or is below the least."""
    for name, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{name} is {value!r}, but must be a whole number")
        if least is not None and value < least:
            raise ValueError(f"{name} is {value}, but must be at least {least}")


def check_one_of(allowed: Sequence[object], **values: object) -> None:
    """Refuse what is none of the values allowed."""
    for name, value in values.items():
        if value not in allowed:
            words = " or ".join(", ".join(map(repr, allowed)).rsplit(", ", 1))
            raise ValueError(f"{name} is {value!r}, but must be {words}")


def check_layers(layers: Sequence[str] | None) -> tuple[str, ...] | None:
    """Return names of layers, or None for all; refuse none, and a single name."""
    if layers is None:
        return None
    texts = isinstance(layers, Sequence) and not isinstance(layers, (str, bytes))
    if not texts or not all(isinstance(name, str) for name in layers):
        hint = f": use [{layers!r}]" if isinstance(layers, str) and layers else ""
        raise TypeError(f"layers is {layers!r}, but must be a list of layers' names or None{hint}")
    if not layers:
        raise ValueError("layers is empty: name at least one layer, or leave it out to take all")
    return tuple(layers)


def check_paths(**paths: object) -> None:
    """Refuse what is neither a path nor None."""
    for name, value in paths.items():
        if value is not None and not isinstance(value, (str, Path)):
            raise TypeError(f"{name} is {value!r}, but must be a path")
        if value == "":
            raise ValueError(f"{name} is empty, but must be a path; None for none")
