"""The flat map of the older interface: what goes in comes out, and no stranger breaks it."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pncs_flower.properties import pack_properties, unpack_properties
from pncs_flower.protocol import MARKER

NAMES = st.text(max_size=5)
SCALARS = st.one_of(st.booleans(), st.integers(), st.text(max_size=5), st.binary(max_size=5))
OWN_NAMES = NAMES.filter(lambda name: not name.startswith(MARKER))


@given(
    marker=st.dictionaries(NAMES.filter(lambda n: n != "arrays"), st.integers(), max_size=3),
    arrays=st.dictionaries(NAMES, st.binary(max_size=5), max_size=12),
    others=st.dictionaries(OWN_NAMES, SCALARS, max_size=3),
    seed=st.integers(0, 99),
)
def test_all_of_it_comes_back_in_order_whatever_the_map_does_to_its_own(
    marker, arrays, others, seed
):
    packed = list(pack_properties(marker, arrays, others).items())
    random.Random(seed).shuffle(packed)
    unpacked = unpack_properties(dict(packed))
    assert unpacked == (marker, arrays, others)
    assert list(unpacked[1]) == list(arrays)


def test_a_map_without_a_marker_is_somebody_elses():
    assert unpack_properties({"question": 7}) is None


@pytest.mark.parametrize(
    "properties",
    [
        {MARKER: 7},
        {MARKER: "{"},
        {MARKER: "[" * 100_000},
        {MARKER: "[]"},
        {MARKER: "{}"},
        {MARKER: '{"arrays": "ab"}'},
        {MARKER: '{"arrays": [1]}', f"{MARKER}-array/0": b""},
        {MARKER: '{"arrays": ["a"]}'},
        {MARKER: '{"arrays": ["a"]}', f"{MARKER}-array/0": 1.5},
        {MARKER: '{"arrays": ["a", "a"]}', f"{MARKER}-array/0": b"", f"{MARKER}-array/1": b""},
        {MARKER: " " * 2_000_000},
    ],
)
def test_what_is_malformed_is_one_kind_of_error(properties):
    with pytest.raises(ValueError, match=r"marker|array"):
        unpack_properties(properties)
