"""What may come over the wire, and what of a value survives it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from pncs_flower.sketches.kinds import Layers
from pncs_flower.sketches.wire import HEAD, WIRES, Wire, pack, unpack

VECTORS = npst.arrays(
    np.float32, st.integers(1, 20), elements=st.floats(-(2.0**99), 2.0**99, width=32)
)


@settings(deadline=None)
@given(VECTORS)
def test_float32_keeps_the_values(values: np.ndarray) -> None:
    np.testing.assert_array_equal(unpack(pack(values, "float32"), "float32"), values)


@settings(deadline=None)
@given(VECTORS)
def test_float16_keeps_eleven_bits_at_any_scale(values: np.ndarray) -> None:
    kept = unpack(pack(values, "float16"), "float16").astype(np.float64)
    # Half a unit in the last place; values 2^-14 below the largest share one absolute step.
    largest = np.abs(values.astype(np.float64)).max()
    allowed = 2.0**-11 * np.abs(values.astype(np.float64)) + 2.0**-24 * largest + 1e-45
    assert (np.abs(kept - values) <= allowed).all()


@settings(deadline=None)
@given(VECTORS.filter(lambda values: np.abs(values).max() > 1e-30))
def test_int8_is_off_by_half_a_step_at_most(values: np.ndarray) -> None:
    kept = unpack(pack(values, "int8"), "int8").astype(np.float64)
    largest = np.abs(values.astype(np.float64)).max()
    assert np.abs(kept - values).max() <= largest / 254 * (1 + 1e-4)


def test_int8_by_hand() -> None:
    # A step of 2 / 127: 1 is 63.5 steps, rounded to the even 64.
    kept = unpack(pack(np.array([2.0, -2.0, 1.0, 0.0]), "int8"), "int8")
    np.testing.assert_allclose(kept, [2, -2, 128 / 127, 0], rtol=1e-6)


@pytest.mark.parametrize("wire", WIRES)
def test_zeros_stay_zeros(wire: Wire) -> None:
    assert not unpack(pack(np.zeros(3), wire), wire).any()


@pytest.mark.parametrize("wire", WIRES)
def test_bytes_are_what_is_packed(wire: Wire) -> None:
    packed = pack(np.ones(7), wire)
    assert packed.dtype == wire
    assert packed.nbytes == Layers(wire).num_bytes(7)


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_was_not_finite_is_refused(wire: Wire, bad: float) -> None:
    packed = pack(np.array([1.0, bad]), wire)
    with pytest.raises(ValueError, match="not finite"):
        unpack(packed, wire)


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("shape", [(6,), (4,), (1, 5), (0,), ()])
def test_another_shape_is_refused(wire: Wire, shape: tuple[int, ...]) -> None:
    packed = np.zeros((shape[0] + HEAD[wire], *shape[1:]) if shape else (), dtype=wire)
    with pytest.raises(ValueError, match="shape"):
        Layers(wire).decode(packed, 5)


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("dtype", [np.float64, np.int64, object, "U4", np.uint8])
def test_another_dtype_is_refused(wire: Wire, dtype: type) -> None:
    with pytest.raises(ValueError, match="dtype"):
        Layers(wire).decode(np.zeros(5 + HEAD[wire], dtype), 5)


@pytest.mark.parametrize("exponent", [0.5, 161.0, -161.0, np.inf])
def test_a_made_up_exponent_is_refused(exponent: float) -> None:
    with pytest.raises(ValueError, match="exponent"):
        unpack(np.array([exponent, 1.0], dtype=np.float16), "float16")


def test_values_beyond_float32_are_refused() -> None:
    with pytest.raises(ValueError, match="not finite"):
        unpack(np.array([150.0, 1.0], dtype=np.float16), "float16")
