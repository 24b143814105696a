"""Reads what clients send without trusting it: sizes before contents, and never a pickle."""

import io
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from flwr.app import Array, ArrayRecord, RecordDict

from pncs_flower.layers import choose_layers
from pncs_flower.protocol import LOSS, NUM_EXAMPLES, SUMMARY, SummaryRequest
from pncs_flower.sketches import CoordinateShare, Sketch, parse_sketch

from .model import Model, OtherUpdateError

__all__ = ["SummaryDecoder", "check_update", "decode_loss", "read_array"]

_NUMPY = "numpy.ndarray"
_NO_MOD = (
    ", so the mod has not answered: put summary_mod first among the mods of the whole app, "
    "ClientApp(mods=[summary_mod, ...])"
)
_HEADER_BYTES = 256  # of an array in NumPy's format; 128 as NumPy writes it
_ARRAY_BYTES = 128
_ABOUT_BYTES = 64  # of what a summary says beside its arrays


def read_array(array: Array) -> np.ndarray:
    """Return a received array, read only, without allocating what its header claims.

    Parameters
    ----------
    array : Array
        As a client sent it.

    Returns
    -------
    np.ndarray
        A view of the bytes received.

    Raises
    ------
    ValueError
        If the bytes are not one plain NumPy array of exactly the size that its header states.
    """
    if array.stype != _NUMPY:
        raise ValueError(f"array type {array.stype!r} is not {_NUMPY!r}")
    # The magic text and the version are followed by the header's length, of 2 bytes or of 4.
    end = 10 if array.data[6:7] == b"\x01" else 12
    start = end + int.from_bytes(array.data[8:end], "little")
    try:
        shape, fortran, dtype = _read_header(array.data[:start])
    except Exception as error:  # a forged header makes NumPy's parser raise nearly anything
        raise ValueError(f"no NumPy array: {type(error).__name__}") from None
    if dtype.hasobject or dtype.kind not in "fiub":
        raise ValueError(f"dtype {dtype} is not that of a number")
    size = dtype.itemsize
    for length in shape:
        size *= length  # Python integers: a product that does not overflow
    if len(array.data) - start != size:
        raise ValueError(f"{len(array.data) - start} bytes of values, but the header says {size}")
    flat = np.frombuffer(array.data, dtype=dtype, offset=start)
    if dtype.kind == "b" and (flat.view(np.uint8) > 1).any():
        raise ValueError("a bool that is neither 0 nor 1")
    try:
        return flat.reshape(shape, order="F" if fortran else "C")
    except (TypeError, ValueError, OverflowError):  # lengths that are bools, negative or too large
        raise ValueError(f"no array has the shape {shape}") from None


@lru_cache(maxsize=1 << 10)  # parsing takes as long as the values, and most headers are alike
def _read_header(header: bytes) -> tuple[tuple[int, ...], bool, np.dtype]:
    stream = io.BytesIO(header)
    if np.lib.format.read_magic(stream) == (1, 0):
        return np.lib.format.read_array_header_1_0(stream)
    return np.lib.format.read_array_header_2_0(stream)


def decode_loss(content: RecordDict) -> dict[str, np.ndarray]:
    """Return a client's loss and number of examples, each of shape (1,).

    Raises
    ------
    ValueError
        If they are not there, are no finite numbers, or the client has no example.
    """
    record = content.array_records.get(SUMMARY)
    if record is None or set(record) != {LOSS, NUM_EXAMPLES}:
        raise ValueError(f"the answer holds no loss and number of examples{_NO_MOD}")
    values = {name: read_array(record[name]) for name in (LOSS, NUM_EXAMPLES)}
    for name, value in values.items():
        if value.shape != (1,) or not np.isfinite(value).all():
            raise ValueError(f"{name} is {np.array2string(value, threshold=4)}, no finite number")
    if values[NUM_EXAMPLES][0] <= 0:
        raise ValueError(f"{NUM_EXAMPLES} is {values[NUM_EXAMPLES][0]}, but must be above 0")
    return values


@dataclass(frozen=True)
class SummaryDecoder:
    """Knows what the summary of a model must look like, and reads no other.

    Attributes
    ----------
    sketch : Sketch
        The sketch.
    sizes : dict of str to int
        Number of values of each layer.
    """

    sketch: Sketch
    sizes: dict[str, int]

    @classmethod
    def for_model(cls, request: SummaryRequest, arrays: ArrayRecord) -> "SummaryDecoder":
        """Return the decoder for a request and a model.

        Raises
        ------
        ValueError
            If the model has no such layer; the message lists those that exist.
        """
        layers = choose_layers(arrays, request.layers)
        sizes = {
            layer: sum(int(np.prod(arrays[name].shape)) for name in names)
            for layer, names in layers.items()
        }
        sketch = parse_sketch(request.sketch)
        if isinstance(sketch, CoordinateShare):
            update = sum(len(array.data) for array in arrays.values())
            framing = _ABOUT_BYTES + sum(_ARRAY_BYTES + len(layer.encode()) for layer in sizes)
            sketch = sketch.of_model(sizes.values(), update, framing)
        return cls(sketch, sizes)

    @property
    def num_bytes(self) -> int:
        """Bytes of a summary's numbers, without names and framing."""
        return sum(self.sketch.num_bytes(size) for size in self.sizes.values())

    def decode(self, content: RecordDict) -> dict[str, np.ndarray]:
        """Return the sketch of each layer.

        Raises
        ------
        ValueError
            If anything is not as asked for: layers, sizes, dtypes, or a value that is not finite.
        """
        record = content.array_records.get(SUMMARY)
        if record is None:
            raise ValueError(f"the answer holds no summary{_NO_MOD}")
        if record.keys() != self.sizes.keys():
            raise ValueError(
                f"summary of the layers {', '.join(record) or '(none)'}, but "
                f"{', '.join(self.sizes)} were asked for (if the app has a mod that renames "
                "arrays, put summary_mod before it)"
            )
        return {layer: self._decode_layer(record[layer], layer) for layer in self.sizes}

    def _decode_layer(self, array: Array, layer: str) -> np.ndarray:
        most = self.sketch.num_bytes(self.sizes[layer]) + _HEADER_BYTES
        if len(array.data) > most:
            raise ValueError(
                f"summary of layer {layer!r}: {len(array.data)} bytes, but at most {most} are due"
            )
        try:
            return self.sketch.decode(read_array(array), self.sizes[layer])
        except ValueError as error:
            raise ValueError(f"summary of layer {layer!r}: {error}") from None


def check_update(content: RecordDict, model: Model) -> dict[str, np.ndarray]:
    """Check a client's full update before it is aggregated.

    Parameters
    ----------
    content : RecordDict
        The content of the client's reply.
    model : Model
        The model that the client was sent.

    Returns
    -------
    dict of str to np.ndarray
        The arrays to put in place of those sent: those that were of another precision than the
        model's, in the model's, and those that were said to be what they are not. (Flower leaves
        dtype and shape out of what a `client_fn` returns.)

    Raises
    ------
    OtherUpdateError
        If the arrays are not those of the model.
    ValueError
        If one is no plain array, or holds a value that is not finite, or so large that it, or its
        square, is not finite in the model's precision.
    """
    records = content.array_records
    if len(records) != 1:
        raise OtherUpdateError(f"{len(records)} array records in place of one")
    (record,) = records.values()
    if record.keys() != model.weights.keys():
        raise OtherUpdateError(
            f"arrays {', '.join(record) or '(none)'} in place of {', '.join(model.weights)}"
        )
    others: dict[str, np.ndarray] = {}
    for name, array in record.items():
        try:
            values = read_array(array)
        except ValueError as error:
            raise ValueError(f"array {name!r}: {error}") from None
        fitted = model.fit(name, values)
        told = (array.dtype, tuple(array.shape))
        if fitted is not values or told != (str(values.dtype), values.shape):
            others[name] = fitted
    return others
