"""Updates as vectors: what of them is combined, and how the result is put into them."""

from collections.abc import Mapping

import numpy as np
from flwr.app import Array, ArrayRecord, RecordDict

from pncs_flower.layers import ALL_LAYERS, choose_vectors, local_change
from pncs_flower.messages.arrays import read_array
from pncs_flower.messages.records import of_kind


def local_update(before: Mapping[str, np.ndarray], arrays: ArrayRecord) -> np.ndarray:
    """Return what was sent less what came back, of the arrays that were sent, as one vector."""
    changes = (local_change(values, read_array(arrays[name])) for name, values in before.items())
    return np.concatenate([change.ravel() for change in changes])


class Vectors:
    """The floating-point arrays of a model as one vector, without normalisation's buffers."""

    def __init__(self, weights: ArrayRecord) -> None:
        names = choose_vectors(weights, whole=True)[ALL_LAYERS]
        self._before = {name: read_array(weights[name]) for name in names}

    def update(self, content: RecordDict) -> np.ndarray:
        """Return weights before minus weights after, float32, shape (P,)."""
        (arrays,) = of_kind(content, ArrayRecord).values()
        return local_update(self._before, arrays).astype(np.float32, copy=False)

    def changed(self, change: np.ndarray) -> Mapping[str, Array]:
        """Return the model's arrays less a change, shape (P,), in the precision that they have."""
        size = sum(weights.size for weights in self._before.values())
        if np.shape(change) != (size,):
            raise ValueError(f"a change of shape {np.shape(change)}, want ({size},)")
        arrays, start = {}, 0
        for name, weights in self._before.items():
            part = change[start : start + weights.size].reshape(weights.shape)
            with np.errstate(over="ignore"):  # a model that is not finite is told of afterwards
                arrays[name] = Array(np.asarray(weights - part).astype(weights.dtype))
            start += weights.size
        return arrays
