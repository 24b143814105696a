"""Checks of arguments that rules and strategies share."""

from collections.abc import Sequence
from pathlib import Path

__all__ = [
    "check_flags",
    "check_layers",
    "check_numbers",
    "check_one_of",
    "check_paths",
    "check_share",
    "check_text",
    "check_whole",
]


def check_whole(least: int | None = None, **numbers: object) -> None:
    """Refuse what is not a whole number, or is below the least.

    Raises
    ------
    TypeError, ValueError
        Names the option and its value.
    """
    for name, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{name} is {value!r}, but must be a whole number")
        if least is not None and value < least:
            raise ValueError(f"{name} is {value}, but must be at least {least}")


def check_numbers(**numbers: object) -> None:
    """Raise TypeError for what is not a number."""
    for name, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise TypeError(f"{name} is {value!r}, but must be a number")


def check_flags(**flags: object) -> None:
    """Raise TypeError for what is not True or False."""
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise TypeError(f"{name} is {value!r}, but must be True or False")


def check_one_of(allowed: Sequence[object], **values: object) -> None:
    """Raise ValueError for what is none of the values allowed."""
    for name, value in values.items():
        if value not in allowed:
            words = " or ".join(", ".join(map(repr, allowed)).rsplit(", ", 1))
            raise ValueError(f"{name} is {value!r}, but must be {words}")


def check_text(**texts: object) -> None:
    """Raise TypeError for what is not text."""
    for name, value in texts.items():
        if not isinstance(value, str):
            raise TypeError(f"{name} is {value!r}, but must be text")


def check_layers(layers: Sequence[str] | None) -> tuple[str, ...] | None:
    """Return names of layers, or None for all.

    Raises
    ------
    TypeError
        If they are something else, also a single name, which is a sequence of letters.
    ValueError
        If there is none.
    """
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
    """Refuse what is not a path; None is none.

    Raises
    ------
    TypeError, ValueError
        Names the option and its value.
    """
    for name, value in paths.items():
        if value is not None and not isinstance(value, (str, Path)):
            raise TypeError(f"{name} is {value!r}, but must be a path")
        if value == "":
            raise ValueError(f"{name} is empty, but must be a path; None for none")


def check_share(**shares: float) -> None:
    """Refuse a share that is not a number from 0 to 1.

    Raises
    ------
    TypeError, ValueError
        Names the option and its value.
    """
    check_numbers(**shares)
    for name, value in shares.items():
        if not 0 <= value <= 1:
            raise ValueError(f"{name} is {value}, but must be a share from 0 to 1")
