"""The hash of the count sketch, read off from unit vectors, and sketches of several slabs."""

import numpy as np
import pytest

from pncs_flower.sketches import count as module
from pncs_flower.sketches.count import count_sketch


def matrix(num_values: int, size: int, seed: int = 0) -> np.ndarray:
    """The sketch as a matrix, shape (size, num_values): a column for each coordinate."""
    columns = [count_sketch(unit, size, seed=seed, layer="fc")[0] for unit in np.eye(num_values)]
    return np.array(columns).T


@pytest.fixture
def small_slabs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several slabs and rows with few values."""
    monkeypatch.setattr(module, "_SLAB", 32)


@pytest.mark.usefixtures("small_slabs")
@pytest.mark.parametrize("size", [1, 5, 8, 40])
def test_every_coordinate_goes_to_one_bucket_with_a_sign(size: int) -> None:
    hashed = matrix(150, size)
    assert (np.abs(hashed).sum(axis=0) == 1).all()
    assert set(np.unique(hashed)) <= {-1.0, 0.0, 1.0}


@pytest.mark.usefixtures("small_slabs")
@pytest.mark.parametrize("size", [1, 5, 8, 40])
def test_a_vector_is_sketched_as_the_matrix_says(size: int) -> None:
    values = np.random.default_rng(0).standard_normal(150)
    expected = matrix(150, size) @ values
    np.testing.assert_allclose(
        count_sketch(values, size, seed=0, layer="fc")[0], expected, atol=1e-5
    )


@pytest.mark.usefixtures("small_slabs")
def test_powers_share_the_hash() -> None:
    values = np.random.default_rng(0).standard_normal(150)
    sketches = count_sketch(values, 5, seed=0, layer="fc", powers=3, scale=2.0)
    expected = np.stack([matrix(150, 5) @ (values / 2) ** power for power in (1, 2, 3)])
    np.testing.assert_allclose(sketches, expected, atol=1e-5)


@pytest.mark.usefixtures("small_slabs")
@pytest.mark.parametrize(("first", "second"), [(0, 1), (0, 8), (3, 70), (2, 34), (7, 149)])
def test_two_coordinates_rarely_share_a_bucket(first: int, second: int) -> None:
    num_seeds, size = 400, 8
    shared = 0
    for seed in range(num_seeds):
        values = np.zeros((2, 150))
        values[0, first] = values[1, second] = 1
        buckets = [count_sketch(v, size, seed=seed, layer="fc")[0].nonzero()[0] for v in values]
        shared += int(buckets[0][0] == buckets[1][0])
    # 1 / size, or never within a row; four standard deviations are .066.
    assert shared / num_seeds < 1 / size + 0.067


@pytest.mark.usefixtures("small_slabs")
def test_signs_are_as_often_plus_as_minus() -> None:
    signs = np.concatenate([matrix(150, 8, seed).sum(axis=0) for seed in range(20)])
    assert abs(signs.mean()) < 4 / np.sqrt(len(signs))


def test_layers_have_hashes_of_their_own() -> None:
    values = np.random.default_rng(0).standard_normal(150)
    first, second = (count_sketch(values, 8, seed=0, layer=name) for name in ("a", "b"))
    assert (first != second).any()


def test_a_strided_vector_is_sketched_as_its_copy() -> None:
    values = np.random.default_rng(0).standard_normal((150, 3)).astype(np.float32)[:, 1]
    np.testing.assert_array_equal(
        count_sketch(values, 8, seed=0, layer="fc"),
        count_sketch(values.copy(), 8, seed=0, layer="fc"),
    )
