"""Received records as a base strategy is given them, and arrays in double precision."""

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from pncs_flower.messages.arrays import read_array
from pncs_flower.messages.records import of_kind


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


class CheckedRecords(RecordDict):
    """Records that have been checked, for the base strategy."""

    # It asks several times for those of a kind, and Flower takes as long for that as for a mean.

    @property
    def array_records(self) -> dict[str, ArrayRecord]:  # type: ignore[override]
        """Return the array records by their names."""
        return of_kind(self, ArrayRecord)

    @property
    def metric_records(self) -> dict[str, MetricRecord]:  # type: ignore[override]
        """Return the metric records by their names."""
        return of_kind(self, MetricRecord)

    @property
    def config_records(self) -> dict[str, ConfigRecord]:  # type: ignore[override]
        """Return the config records by their names."""
        return of_kind(self, ConfigRecord)


def read_doubles(array: Array) -> np.ndarray:
    """Return a copy of a received array in double precision."""
    return read_array(array).astype(np.float64)
