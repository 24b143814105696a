"""A marked message as a flat map of scalars, all that Flower's older interface can carry."""

import json
from collections.abc import Mapping
from typing import Any

from .protocol import MARKER

Scalar = bool | bytes | float | int | str

_ARRAY = f"{MARKER}-array/"
_NAMES = "arrays"
# Characters of a marker's JSON text: a client's key and the names of a model's arrays.
_LONGEST_MARKER = 1_000_000


def pack_properties(
    marker: Mapping[str, Any], arrays: Mapping[str, bytes], others: Mapping[str, Scalar]
) -> dict[str, Scalar]:
    """Return a map of a marker, of arrays (NumPy files, in order) and of an app's own entries."""
    text = json.dumps({**marker, _NAMES: list(arrays)})
    numbered = {f"{_ARRAY}{number}": data for number, data in enumerate(arrays.values())}
    return {**others, MARKER: text, **numbered}


def unpack_properties(
    properties: Mapping[str, Scalar],
) -> tuple[dict[str, Any], dict[str, bytes], dict[str, Scalar]] | None:
    """Read marker, arrays and other entries (None: no marker), or raise ValueError."""
    text = properties.get(MARKER)
    if text is None:
        return None
    if not isinstance(text, str) or len(text) > _LONGEST_MARKER:
        raise ValueError(f"the marker is no text of at most {_LONGEST_MARKER} characters")
    try:
        marker = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError("the marker is no JSON") from None
    names = marker.pop(_NAMES, None) if isinstance(marker, dict) else None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError("the marker does not name the arrays that come with it")
    arrays: dict[str, bytes] = {}
    for number, name in enumerate(names):
        data = properties.get(f"{_ARRAY}{number}")
        if not isinstance(data, bytes) or name in arrays:
            raise ValueError(f"array {number}, {name[:80]!r}, is not there, or there twice")
        arrays[name] = data
    others = {
        name: value
        for name, value in properties.items()
        if name != MARKER and not name.startswith(_ARRAY)
    }
    return marker, arrays, others
