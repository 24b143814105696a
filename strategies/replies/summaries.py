"""What a client's answer in the pre-round must be."""

from dataclasses import dataclass

import numpy as np
from flwr.app import Array, ArrayRecord, RecordDict

from pncs_flower.layers import choose_vectors
from pncs_flower.messages.arrays import read_array
from pncs_flower.messages.records import of_kind
from pncs_flower.protocol import LOSS, NUM_EXAMPLES, SUMMARY, WHOLE, SummaryRequest
from pncs_flower.sketches.base import Sketch
from pncs_flower.sketches.kinds import CoordinateShare, parse_sketch
from pncs_flower.sketches.packed import ClientSketches, Row

_NO_MOD = (
    ", so the mod has not answered: put summary_mod first among the mods of the whole app, "
    "ClientApp(mods=[summary_mod, ...])"
)
_SAME_RELEASE = "server and client need the same release of pncs-flower"
_HEADER_BYTES = 256  # of an array in NumPy's format; 128 as NumPy writes it
_ARRAY_BYTES = 128
_ABOUT_BYTES = 64  # of what a summary says beside its arrays


def decode_loss(content: RecordDict) -> dict[str, np.ndarray]:
    """Return a client's loss and number of examples, each of shape (1,), or raise ValueError."""
    record = of_kind(content, ArrayRecord).get(SUMMARY)
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
    """Knows what a record of an answer must look like, with the values of each layer."""

    sketch: Sketch
    sizes: dict[str, int]
    record: str = SUMMARY

    @classmethod
    def for_model(
        cls, request: SummaryRequest, arrays: ArrayRecord, record: str = SUMMARY
    ) -> "SummaryDecoder":
        """Return the decoder; a ValueError lists the model's layers if it lacks one asked for."""
        vectors = choose_vectors(arrays, request.layers, request.whole)
        sizes = {
            layer: sum(int(np.prod(arrays[name].shape)) for name in names)
            for layer, names in vectors.items()
        }
        sketch = parse_sketch(request.sketch)
        if isinstance(sketch, CoordinateShare):
            update = sum(len(array.data) for array in arrays.values())
            framing = _ABOUT_BYTES + sum(_ARRAY_BYTES + len(layer.encode()) for layer in sizes)
            sketch = sketch.of_model(sizes.values(), update, framing)
        return cls(sketch, sizes, record)

    @property
    def num_bytes(self) -> int:
        """Bytes of the record's numbers, without names and framing."""
        return sum(self.sketch.num_bytes(size) for size in self.sizes.values())

    def decode(self, content: RecordDict) -> ClientSketches:
        """Return the sketch of each layer; ValueError if anything is not as asked for."""
        record = of_kind(content, ArrayRecord).get(self.record)
        if record is None and self.record == WHOLE:
            raise ValueError(f"the answer holds no sketch of the whole update: {_SAME_RELEASE}")
        if record is None:
            raise ValueError(f"the answer holds no summary{_NO_MOD}")
        if record.keys() != self.sizes.keys():
            raise ValueError(
                f"summary of the layers {', '.join(record) or '(none)'}, but "
                f"{', '.join(self.sizes)} were asked for (if the app has a mod that renames "
                f"arrays, put summary_mod before it; {_SAME_RELEASE})"
            )
        return ClientSketches({name: self._read(record[name], name) for name in self.sizes})

    def _read(self, array: Array, layer: str) -> Row:
        most = self.sketch.num_bytes(self.sizes[layer]) + _HEADER_BYTES
        try:
            if len(array.data) > most:
                raise ValueError(f"{len(array.data)} bytes, but at most {most} are due")
            return self.sketch.read(read_array(array), self.sizes[layer])
        except ValueError as error:
            raise ValueError(f"summary of layer {layer!r}: {error}") from None
