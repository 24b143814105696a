"""Received arrays as a base strategy is given them, and in double precision."""

import numpy as np
from flwr.app import Array

from pncs_flower.messages.arrays import read_array


class CheckedArray(Array):
    """An array that `read_array` has read, for the base strategy."""

    # NumPy's reader of files takes longer than a mean of the values.

    def __init__(self, array: Array) -> None:
        self.__dict__.update(
            dtype=array.dtype, shape=array.shape, stype=array.stype, data=array.data
        )

    def numpy(self) -> np.ndarray:
        """Return the array as a NumPy array."""
        return read_array(self).copy()


def read_doubles(array: Array) -> np.ndarray:
    """Return a copy of a received array in double precision."""
    return read_array(array).astype(np.float64)
