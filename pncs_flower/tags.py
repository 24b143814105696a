"""What a client says of itself for who chooses, such as its site: few and short."""

import math
import unicodedata
from collections.abc import Mapping

import numpy as np

Tag = bool | int | float | str
Tags = Mapping[str, Tag]

MOST_TAGS = 20
LONGEST_NAME = 50
LONGEST_TEXT = 200


def check_tags(tags: Mapping[str, object]) -> dict[str, Tag]:
    """Return a client's tags, NumPy's as Python's own; ValueError for one that cannot be."""
    if not isinstance(tags, Mapping):
        raise ValueError(f"its tags are {type(tags).__name__}, but must be a dict")
    if len(tags) > MOST_TAGS:
        raise ValueError(f"it has {len(tags)} tags, but may have {MOST_TAGS}")
    checked: dict[str, Tag] = {}
    for name, value in tags.items():
        if not isinstance(name, str) or not 0 < len(name) <= LONGEST_NAME or not _is_plain(name):
            raise ValueError(
                f"the name of its tag {_short(name)} must be text of 1 to {LONGEST_NAME} letters, "
                "without control characters"
            )
        if isinstance(value, np.generic):
            value = value.item()
        if isinstance(value, str):
            allowed = len(value) <= LONGEST_TEXT and _is_plain(value)
        elif isinstance(value, int):
            allowed = -(2**63) <= value < 2**63
        else:
            allowed = isinstance(value, float) and math.isfinite(value)
        if not allowed:
            raise ValueError(
                f"its tag {name!r} is {_short(value)}, but must be a finite number of at most 64 "
                f"bits, True, False, or text of at most {LONGEST_TEXT} letters without control "
                "characters"
            )
        checked[name] = value  # type: ignore[assignment]
    return checked


def _is_plain(text: str) -> bool:
    return not any(unicodedata.category(letter) in ("Cc", "Cs") for letter in text)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
