"""Float32 gradients, scored by matrix products, against the formula pair by pair in float64."""

from decimal import Decimal, localcontext

import numpy as np
import pytest
import torch

from pncs_flower import cosine, pairwise_cosine
from pncs_flower.rows import Rows
from pncs_flower.similarity import FORMS, Form

TOLERANCE = 1e-6


def norm(rows: np.ndarray, p: int) -> np.ndarray:
    """The p-norm along the last axis; scaled, as powers of the values leave float64 early."""
    largest = np.abs(rows).max(axis=-1, keepdims=True)
    scaled = np.abs(rows / np.where(largest == 0, 1.0, largest))
    return np.asarray(largest[..., 0] * (scaled**p).sum(axis=-1) ** (1 / p))


def reference(rows: np.ndarray, pairs: np.ndarray, p: int, form: Form) -> np.ndarray:
    """The formula for each pair, from sums and differences of the float32 values in float64."""
    u, v = rows[pairs[:, 0]].astype(np.float64), rows[pairs[:, 1]].astype(np.float64)
    norm_u, norm_v = norm(u, p), norm(v, p)
    if form == "normalized":
        u, v = u / norm_u[:, None], v / norm_v[:, None]
        norm_u = norm_v = np.ones(len(pairs))
    plus, minus = norm(u + v, p), norm(u - v, p)
    if form == "printed":
        return np.asarray((plus - minus) / (4 * norm_u * norm_v))
    if form == "power":
        return np.asarray(
            ((plus / norm_u) ** p - (minus / norm_u) ** p) * (norm_u / norm_v) ** (p / 2) / 2**p
        )
    return np.asarray((plus / norm_u * (plus / norm_v) - minus / norm_u * (minus / norm_v)) / 4)


def sample(kind: str, num_rows: int, num_values: int) -> np.ndarray:
    random = np.random.default_rng(11)
    normal = random.standard_normal((num_rows, num_values))
    base = random.standard_normal(num_values)
    if kind == "heavy tails":
        normal = random.standard_t(3, normal.shape)
    elif kind == "sparse":
        zero = random.random(normal.shape) < 0.99
        zero[:, 0] = False  # no row is all zero
        normal[zero] = 0
    elif kind == "near duplicates":
        normal = base * (1 + 10.0 ** random.uniform(-7, -1, (num_rows, 1)) * normal)
    elif kind == "opposites":
        signs = random.choice([-1, 1], (num_rows, 1))
        normal = signs * base * (1 + 10.0 ** random.uniform(-7, -1, (num_rows, 1)) * normal)
    elif kind == "identical":
        normal[:] = base
    elif kind == "alike":  # coherent sums: the worst case for float32
        normal += base
    return normal.astype(np.float32)


KINDS = (
    "normal",
    "heavy tails",
    "sparse",
    "near duplicates",
    "opposites",
    "identical",
    "alike",
)


def some_pairs(num_rows: int) -> np.ndarray:
    """All pairs, or 200 of them."""
    pairs = np.argwhere(np.triu(np.ones((num_rows, num_rows), dtype=bool), 1))
    keep = np.random.default_rng(3).permutation(len(pairs))[:200]
    return np.asarray(pairs[keep])


def assert_right(rows: np.ndarray, p: int, form: Form) -> None:
    similarity = pairwise_cosine(rows, p, form)
    pairs = some_pairs(len(rows))
    expected = reference(rows, pairs, p, form)
    error = np.abs(similarity[pairs[:, 0], pairs[:, 1]] - expected)
    assert (error / np.maximum(1, np.abs(expected))).max() <= TOLERANCE


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("num_rows", "num_values"), [(2, 3_001), (300, 331)])
def test_few_values(kind: str, form: Form, num_rows: int, num_values: int) -> None:
    assert_right(sample(kind, num_rows, num_values), 4, form)


@pytest.mark.minutes
@pytest.mark.parametrize(
    ("kind", "p"),
    [*((kind, p) for kind in KINDS for p in (2, 4)), ("alike", 6), ("near duplicates", 6)],
)
def test_many_values_with_float32_products(kind: str, p: int) -> None:
    assert_right(sample(kind, 70, 16_411), p, "squared")


@pytest.mark.parametrize("form", FORMS)
def test_magnitudes_from_1e_minus_25_to_1e25(form: Form) -> None:
    # In float64 the formula cancels where one vector is far below the other: neighbours are
    # compared, a factor of 10 apart, at any magnitude.
    rows = sample("normal", 51, 500) * np.float32(10) ** np.arange(-25, 26)[:, None]
    rows = rows.astype(np.float32)
    pairs = np.column_stack([np.arange(50), np.arange(1, 51)])
    expected = reference(rows, pairs, 4, form)
    actual = pairwise_cosine(rows, 4, form)[pairs[:, 0], pairs[:, 1]]
    assert (np.abs(actual - expected) / np.maximum(1, np.abs(expected))).max() <= TOLERANCE


def test_a_factor_of_1e50_between_two_vectors() -> None:
    u, v = sample("normal", 2, 40) * np.array([[1e25], [1e-25]], dtype=np.float32)
    with localcontext(prec=300):
        exact_u, exact_v = [Decimal(float(x)) for x in u], [Decimal(float(x)) for x in v]

        def root(total: Decimal) -> Decimal:
            return total.sqrt().sqrt()

        plus = root(sum(((x + y) ** 4 for x, y in zip(exact_u, exact_v, strict=True)), Decimal()))
        minus = root(sum(((x - y) ** 4 for x, y in zip(exact_u, exact_v, strict=True)), Decimal()))
        norms = root(sum((x**4 for x in exact_u), Decimal())) * root(
            sum((y**4 for y in exact_v), Decimal())
        )
        expected = float((plus**2 - minus**2) / (4 * norms))
    assert cosine(u, v) == pytest.approx(expected, abs=TOLERANCE)


def test_a_memory_mapped_matrix_is_scored(tmp_path: object) -> None:
    rows = sample("normal", 5, 10_000)
    path = f"{tmp_path}/gradients.npy"
    np.save(path, rows)
    mapped = np.load(path, mmap_mode="r")
    np.testing.assert_array_equal(pairwise_cosine(mapped), pairwise_cosine(rows))


def test_float32_tensors_take_the_same_path() -> None:
    rows = sample("alike", 70, 16_411)
    tensor = pairwise_cosine(torch.as_tensor(rows)).numpy()
    assert np.abs(tensor - pairwise_cosine(rows)).max() <= TOLERANCE


def test_products_leave_the_precision_of_torch_as_it_was() -> None:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        Rows.of(torch.ones(2, 3)).power_products(np.ones(2), 4, "float32")
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision(before)
