"""Seeds that all machines and releases share, and streams that can be had in blocks."""

import numpy as np
import pytest

from pncs_flower.randomness import derive_seed, generator, raw_words


@pytest.mark.parametrize(
    ("names", "seed"),
    [
        ((), 8238016292129134938),
        ((3,), 5335423348579534804),
        ((3, "sketch", 7, "a"), 4261587220272908169),
    ],
)
def test_a_seed_is_pinned(names: tuple[int | str, ...], seed: int) -> None:
    """Client and server, and a run and its continuation, must draw the same."""
    assert derive_seed(*names) == seed


def test_names_are_told_apart_by_kind_order_and_number() -> None:
    names: list[tuple[int | str, ...]] = [(1,), ("1",), (1, 2), (2, 1), ("1", "2"), ("12",), (12,)]
    seeds = {derive_seed(*each) for each in names}
    assert len(seeds) == len(names)
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_a_stream_is_the_same_in_blocks() -> None:
    whole = raw_words(10, 1, "a")
    assert whole.dtype == np.uint64
    np.testing.assert_array_equal(
        np.concatenate([raw_words(4, 1, "a"), raw_words(6, 1, "a", offset=4)]), whole
    )


def test_a_generator_depends_on_its_names_alone() -> None:
    assert generator(1, "a").integers(2**60) == generator(1, "a").integers(2**60)
    assert generator(1, "a").integers(2**60) != generator(1, "b").integers(2**60)
