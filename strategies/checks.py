"""Checks of arguments: each error names the argument, its value, and what it must be."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = [
    "check_above_zero",
    "check_factor",
    "check_flags",
    "check_layers",
    "check_not_negative",
    "check_one_of",
    "check_paths",
    "check_seconds",
    "check_share",
    "check_text",
    "check_whole",
    "given",
]


def given(**values: Any) -> dict[str, Any]:
    """Return what is not None."""
    return {name: value for name, value in values.items() if value is not None}


def check_whole(least: int | None = None, **numbers: object) -> None:
    """Refuse what is not a whole number, or is below the least."""
    for name, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{name} is {value!r}, but must be a whole number")
        if least is not None and value < least:
            raise ValueError(f"{name} is {value}, but must be at least {least}")


def check_share(**numbers: object) -> None:
    """Refuse what is not a number from 0 to 1."""
    _check(numbers, lambda value: 0 <= value <= 1, "a share from 0 to 1")


def check_factor(**numbers: object) -> None:
    """Refuse what is not a number above 0 and at most 1."""
    _check(numbers, lambda value: 0 < value <= 1, "above 0 and at most 1")


def check_above_zero(**numbers: object) -> None:
    """Refuse what is not a number above 0, which may be infinite."""
    _check(numbers, lambda value: value > 0, "above 0")


def check_not_negative(**numbers: object) -> None:
    """Refuse what is not a finite number of at least 0."""
    _check(numbers, lambda value: 0 <= value < math.inf, "finite and at least 0")


def check_seconds(**numbers: object) -> None:
    """Refuse what is not a finite number above 0."""
    _check(numbers, lambda value: 0 < value < math.inf, "a number of seconds above 0")


def _check(numbers: Mapping[str, object], allowed: Callable[[float], bool], words: str) -> None:
    for name, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise TypeError(f"{name} is {value!r}, but must be a number")
        if not allowed(value):
            raise ValueError(f"{name} is {value}, but must be {words}")


def check_flags(**flags: object) -> None:
    """Refuse what is not True or False."""
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise TypeError(f"{name} is {value!r}, but must be True or False")


def check_one_of(allowed: Sequence[object], **values: object) -> None:
    """Refuse what is none of the values allowed."""
    for name, value in values.items():
        if value not in allowed:
            words = " or ".join(", ".join(map(repr, allowed)).rsplit(", ", 1))
            raise ValueError(f"{name} is {value!r}, but must be {words}")


def check_text(**texts: object) -> None:
    """Refuse what is not text."""
    for name, value in texts.items():
        if not isinstance(value, str):
            raise TypeError(f"{name} is {value!r}, but must be text")


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
