"""What the similarity needs of an array library, so that one formula serves NumPy and torch."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

__all__ = ["Array", "Precision", "Rows"]

Array = Any  # np.ndarray or torch.Tensor: the two share the operators and names used here
Precision = Literal["float32", "float64"]


@dataclass(frozen=True)
class Rows:
    """K vectors of d values (`rows`, of NumPy or torch: `xp`), widened only block by block."""

    rows: Any
    xp: Any
    num_rows: int
    num_values: int

    @classmethod
    def of(cls, rows: Any) -> "Rows":
        """Wrap what a caller gave, or raise ValueError unless it is K vectors of one kind."""
        arrays: Sequence[Any] = [rows]
        if not hasattr(rows, "shape"):
            if isinstance(rows, Sequence) and all(hasattr(row, "shape") for row in rows):
                arrays = rows
            else:
                rows = np.asarray(rows)  # lists of numbers
                arrays = [rows]
        shapes = {tuple(array.shape) for array in arrays}
        if len(shapes) != 1 or len({_is_tensor(array) for array in arrays}) != 1:
            raise ValueError(
                f"{len(arrays)} gradients of shapes {sorted(shapes)}, want one or more of one "
                "shape and one array library"
            )
        shape = (len(rows), *shapes.pop()) if arrays is rows else tuple(rows.shape)
        if len(shape) != 2 or 0 in shape:
            raise ValueError(
                f"gradients of shape {shape}, want (clients, values), at least one of each: "
                "flatten them"
            )
        for array in arrays:
            _check_array(array)
        if not _is_tensor(arrays[0]):
            return cls(rows, np, *shape)
        import torch

        return cls(rows, torch, *shape)

    @property
    def precision(self) -> Precision:
        """The precision in which no input value is rounded more than its own type's."""
        arrays = self.rows if isinstance(self.rows, Sequence) else self.rows[:1]
        wide = (array.dtype.itemsize >= (4 if _is_whole(array) else 8) for array in arrays)
        return "float64" if any(wide) else "float32"

    def block(self, start: int, stop: int, precision: Precision) -> Array:
        """Return some of the coordinates of all rows, shape (K, stop - start)."""
        if isinstance(self.rows, Sequence):
            return self.xp.stack([self.cast(row[start:stop], precision) for row in self.rows])
        return self.cast(self.rows[:, start:stop], precision)

    def zeros(self, *shape: int) -> Array:
        """Return float64 zeros beside the rows."""
        return self.beside(np.zeros(shape))

    def beside(self, values: np.ndarray) -> Array:
        """Return a NumPy array as the rows' library has it, on the rows' device."""
        return values if self.xp is np else self.xp.as_tensor(values, device=self.rows[0].device)

    def cast(self, values: Array, precision: Precision) -> Array:
        """Change the floating-point type, where that changes anything."""
        if self.xp is np:
            return values.astype(precision, copy=False)
        return values.detach().to(getattr(self.xp, precision))

    def as_numpy(self, values: Array) -> np.ndarray:
        """Return an array as NumPy has it."""
        return np.asarray(values if self.xp is np else values.cpu().numpy())

    @contextmanager
    def exact_products(self) -> Iterator[None]:
        """Keep torch from rounding float32 factors to TF32 or bfloat16, if the app allowed that."""
        if self.xp is np:
            yield
            return
        before = self.xp.get_float32_matmul_precision()
        self.xp.set_float32_matmul_precision("highest")
        try:
            yield
        finally:
            self.xp.set_float32_matmul_precision(before)


def _check_array(array: Any) -> None:
    """Raise ValueError unless it holds real numbers and computes as an array does."""
    if isinstance(array, (np.matrix, np.ma.MaskedArray)):
        raise ValueError(
            f"gradients in a {type(array).__name__}, which computes otherwise than an array: "
            "give np.asarray of it"
        )
    if _is_tensor(array):
        import torch

        if array.layout is not torch.strided:
            raise ValueError(f"gradients of layout {array.layout}, want dense ones: to_dense()")
        if array.is_complex() or array.dtype is torch.bool:
            raise ValueError(f"gradients of dtype {array.dtype}, want real numbers")
    elif array.dtype.kind not in "fiu" and array.dtype.name != "bfloat16":
        raise ValueError(f"gradients of dtype {array.dtype}, want real numbers")


def _is_tensor(array: Any) -> bool:
    # By name, so that a deployment without torch never imports it.
    return type(array).__module__.partition(".")[0] == "torch"


def _is_whole(array: Any) -> bool:
    return array.dtype.kind in "iu" if not _is_tensor(array) else not array.is_floating_point()
