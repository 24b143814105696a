"""A layer is a module: the arrays that share a name up to the last dot."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

ALL_LAYERS = "*"
"""The name of the vector that holds the arrays of several layers, or of all."""

# What batch normalisation counts and averages while it trains: state, not a gradient.
_BUFFERS = ("running_mean", "running_var", "num_batches_tracked")


def local_change(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Return before minus after, in float32 at least: float16 may overflow.

    What was not finite before, as in a mask, does not change.
    """
    if before.shape != after.shape:  # NumPy would broadcast
        raise ValueError(f"an array of shape {before.shape} came back with shape {after.shape}")
    dtype = np.result_type(before, after, np.float32)
    with np.errstate(invalid="ignore"):
        difference: np.ndarray = np.subtract(before, after, dtype=dtype)
    finite = np.isfinite(before)
    return difference if finite.all() else np.where(finite, difference, dtype.type(0))


def group_layers(names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Group names such as ``"classifier.6.weight"`` by layer, without normalisation's buffers."""
    layers: dict[str, list[str]] = {}
    for name in names:
        module, _, leaf = name.rpartition(".")
        if leaf not in _BUFFERS:
            layers.setdefault(module or name, []).append(name)
    return {layer: tuple(arrays) for layer, arrays in layers.items()}


def _is_floating(dtype: str) -> bool:
    try:
        return np.dtype(dtype).kind == "f"
    except TypeError:  # a name of another framework's
        return False


def choose_layers(
    arrays: Mapping[str, Any], layers: Sequence[str] | None = None
) -> dict[str, tuple[str, ...]]:
    """Return the layers (all if None) with their arrays, of a model of Flower's arrays."""
    known = group_layers(
        name for name, array in arrays.items() if _is_floating(array.dtype) and 0 not in array.shape
    )
    if not known:
        found = ", ".join(f"{name} of {array.dtype}" for name, array in list(arrays.items())[:4])
        raise ValueError(
            "this model has no floating-point array with a value, so there is no gradient to "
            f"summarise: its arrays are {found or '(none)'}. Use a rule that asks for no sketch, "
            "such as UniformSelection, RoundRobin, Oort or ActiveFL"
        )
    wanted = list(known) if layers is None else list(layers)
    unknown = [layer for layer in wanted if layer not in known]
    if unknown or not wanted:
        problem = f"unknown layer {unknown[0]!r}" if unknown else "no layer is chosen"
        raise ValueError(f"{problem}: the model's layers are {', '.join(known) or '(none)'}")
    return {layer: known[layer] for layer in wanted}


def choose_vectors(
    arrays: Mapping[str, Any], layers: Sequence[str] | None = None, whole: bool = False
) -> dict[str, tuple[str, ...]]:
    """Return the vectors to summarise, each with its arrays: the layers, or all of them as one."""
    chosen = choose_layers(arrays, layers)
    if not whole:
        return chosen
    names = set(chain.from_iterable(chosen.values()))
    return {ALL_LAYERS: tuple(name for name in arrays if name in names)}  # in the model's order
