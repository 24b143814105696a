"""NumPy's values in a checkpoint: arrays as they lie in memory, scalars, and random generators."""

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from warnings import catch_warnings, simplefilter

import numpy as np

from ..errors import UnsavableError

if TYPE_CHECKING:
    from .snapshot import Decoder, Encoder

__all__ = [
    "bytes_of",
    "dtype_text",
    "get_array",
    "get_bit_generator",
    "get_generator",
    "get_random_state",
    "get_scalar",
    "put_array",
    "put_bit_generator",
    "put_generator",
    "put_random_state",
    "put_scalar",
    "shared_memory",
]

_BIT_GENERATORS = ("MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64")
_WORK = 10_000  # how hard NumPy tries to tell whether two arrays have a byte in common


def dtype_text(dtype: np.dtype, path: str) -> Any:
    """Return a dtype as NumPy's files have it.

    Raises
    ------
    UnsavableError
        If a file would not bring it back.
    """
    text: Any = None
    back = None
    with suppress(TypeError, ValueError), catch_warnings():
        simplefilter("ignore")  # NumPy's: what it warns of is refused
        text = np.lib.format.dtype_to_descr(dtype)
        back = np.lib.format.descr_to_dtype(text)
    known = back == dtype and (back is None or back.type is dtype.type or dtype.kind != "V")
    if dtype.hasobject or dtype.metadata or not known:
        raise UnsavableError(
            f"{path} has the dtype {dtype}, which cannot be written without pickle: use numbers, "
            "text or a structured dtype of these"
        )
    return text


def put_array(encoder: "Encoder", value: np.ndarray, path: str) -> list[Any]:
    """Write an array with the order of its axes in memory, on which sums depend."""
    dtype_text(value.dtype, path)
    axes = sorted(range(value.ndim), key=lambda axis: -abs(value.strides[axis]))
    # Not NumPy's ascontiguousarray, which gives an array without dimensions one.
    name = encoder.array(np.asarray(value.transpose(axes), order="C"), value, path)
    return [name, None if axes == sorted(axes) else axes, bool(value.flags.writeable)]


def get_array(decoder: "Decoder", content: list[Any]) -> np.ndarray:
    """Read an array; one in two places is one again."""
    name, axes, writeable = content
    values = decoder.arrays[name]
    if axes is not None:
        values = values.transpose(np.argsort(axes))
    if not writeable:
        values.flags.writeable = False
    return values


def put_scalar(encoder: "Encoder", value: Any, path: str) -> list[Any]:
    """Write a scalar; text as it is, for an array cuts zeros off its end."""
    if type(value) in (np.str_, np.bytes_):
        plain = "".join(value) if type(value) is np.str_ else b"".join([value])
        return [type(value).__name__, encoder.encode(plain, path)]
    array = np.asarray(value)
    if type(array[()]) is not type(value):
        raise UnsavableError(f"{path} is a {type(value).__name__}, which a checkpoint cannot hold")
    text = dtype_text(array.dtype, path)
    if array.dtype.kind not in "MmV":
        text = array.dtype.char  # some types have the same bytes, but another name
    if isinstance(text, str):
        return [text, array.tobytes().hex()]
    return ["structured", encoder.encode(array, path)]


def get_scalar(decoder: "Decoder", content: list[Any]) -> Any:
    """Read a scalar."""
    text, data = content
    if text == "structured":
        return decoder.decode(data)[()]
    if text in ("str_", "bytes_"):
        return {"str_": np.str_, "bytes_": np.bytes_}[text](decoder.decode(data))
    return np.frombuffer(bytes.fromhex(data), np.dtype(text))[0]


def put_bit_generator(encoder: "Encoder", value: Any, path: str) -> list[Any]:
    """Write a bit generator with the seed that it spawns others from."""
    name = type(value).__name__
    if type(value) is not getattr(np.random, name, None) or name not in _BIT_GENERATORS:
        raise UnsavableError(f"{path} is a {name}, not one of NumPy's own bit generators")
    seed = getattr(value, "seed_seq", None)
    if seed is None:
        seed = getattr(value, "_seed_seq", None)  # as it was called before NumPy 1.25
    spawned = None
    if type(seed) is np.random.SeedSequence:
        spawned = [seed.entropy, seed.spawn_key, seed.pool_size, seed.n_children_spawned]
    return [name, encoder.encode(value.state, path), encoder.encode(spawned, path)]


def get_bit_generator(decoder: "Decoder", content: list[Any]) -> Any:
    """Read a bit generator."""
    name, state, spawned = content[0], decoder.decode(content[1]), decoder.decode(content[2])
    if name not in _BIT_GENERATORS:
        raise ValueError(f"unknown bit generator {name!r} in a checkpoint")
    seed: Any = None
    if spawned is not None:
        entropy, key, size, children = spawned
        seed = np.random.SeedSequence(
            entropy, spawn_key=key, pool_size=size, n_children_spawned=children
        )
    generator = getattr(np.random, name)(seed)
    generator.state = state
    return generator


def put_generator(encoder: "Encoder", value: np.random.Generator, path: str) -> Any:
    """Write a generator: all its state is in its bit generator."""
    return encoder.encode(value.bit_generator, path)


def get_generator(decoder: "Decoder", content: Any) -> np.random.Generator:
    """Read a generator."""
    return np.random.Generator(decoder.decode(content))


def put_random_state(encoder: "Encoder", value: np.random.RandomState, path: str) -> list[Any]:
    """Write an older generator, which may keep a second normal number."""
    state: Any = value.get_state(legacy=False)
    kept = [state.get("has_gauss", 0), state.get("gauss", 0.0)]
    return [encoder.encode(value._bit_generator, path), encoder.encode(kept, path)]


def get_random_state(decoder: "Decoder", content: list[Any]) -> np.random.RandomState:
    """Read an older generator."""
    bits = decoder.decode(content[0])
    has_gauss, gauss = decoder.decode(content[1])
    generator = np.random.RandomState(bits)
    state: Any = generator.get_state(legacy=False)
    generator.set_state({**state, "has_gauss": has_gauss, "gauss": gauss})
    return generator


def bytes_of(values: np.ndarray) -> Any:
    """Return the bytes of an array, without a copy where that can be."""
    if values.dtype.itemsize == 0 or not values.flags.c_contiguous:
        return values.tobytes()
    return values.reshape(-1).view(np.uint8)


def shared_memory(arrays: Mapping[str, np.ndarray]) -> tuple[str, str] | None:
    """Return two arrays that have memory in common, of which one can be written to."""
    spans = sorted((*_span(values), name) for name, values in arrays.items() if values.size)
    open_spans: list[tuple[int, str]] = []
    for low, high, name in spans:
        open_spans = [(end, other) for end, other in open_spans if end > low]
        for _, other in open_spans:
            if _share(arrays[name], arrays[other]):
                return other, name
        open_spans.append((high, name))
    return None


def _share(one: np.ndarray, other: np.ndarray) -> bool:
    if not (one.flags.writeable or other.flags.writeable):
        return False
    try:
        return np.shares_memory(one, other, max_work=_WORK)  # type: ignore[arg-type]
    except RuntimeError:  # too hard to tell
        return True


def _span(values: np.ndarray) -> tuple[int, int]:
    start = values.__array_interface__["data"][0]
    reach = [(n - 1) * s for n, s in zip(values.shape, values.strides, strict=True)]
    low = start + sum(step for step in reach if step < 0)
    return low, start + sum(step for step in reach if step > 0) + values.itemsize
