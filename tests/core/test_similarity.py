"""cos_p against the formula in extended precision, and what must hold for any vectors."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from scipy.spatial.distance import cosine as scipy_cosine_distance

from pncs_flower import cosine, pairwise_cosine
from pncs_flower.similarity import FORMS, Form, layered_cosine

ORDERS = (1, 1.5, 2, 3, 4, 6)


def formula(u: np.ndarray, v: np.ndarray, p: float, form: Form) -> float:
    """The four forms as they are defined, in extended precision."""
    u, v = u.astype(np.longdouble), v.astype(np.longdouble)

    def norm(x: np.ndarray) -> np.longdouble:
        return np.longdouble((np.abs(x) ** p).sum() ** (np.longdouble(1) / p))

    if form == "normalized":
        u, v = u / norm(u), v / norm(v)
    plus, minus = norm(u + v), norm(u - v)
    if form == "printed":
        return float((plus - minus) / (4 * norm(u) * norm(v)))
    if form == "power":
        return float((plus**p - minus**p) / np.sqrt(norm(2 * u) ** p * norm(2 * v) ** p))
    return float((plus**2 - minus**2) / (4 * norm(u) * norm(v)))


def reference(rows: np.ndarray, p: float, form: Form) -> np.ndarray:
    return np.array([[formula(u, v, p, form) for v in rows] for u in rows])


def assert_close(actual: np.ndarray, expected: np.ndarray, tolerance: float) -> None:
    """Absolute up to 1, relative above, where a form is unbounded."""
    error = np.abs(np.asarray(actual) - expected) / np.maximum(1.0, np.abs(expected))
    assert error.max() <= tolerance


def sample(kind: str) -> np.ndarray:
    """Six rows of 101 values."""
    random = np.random.default_rng(7)
    normal = random.standard_normal((6, 101))
    base = random.standard_normal(101)
    if kind == "normal":
        return normal
    if kind == "heavy tails":
        return random.standard_t(3, (6, 101))
    if kind == "sparse":
        return np.where(random.random((6, 101)) < 0.9, 0.0, normal) + np.eye(6, 101)
    if kind == "near duplicates":
        return base * (1 + 10.0 ** np.arange(-7, -1)[:, None] * normal)
    if kind == "identical and opposite":
        return np.stack([base, base, -base, 2 * base, -3 * base, normal[0]])
    return normal * 10.0 ** np.arange(-3, 3)[:, None]


KINDS = (
    "normal",
    "heavy tails",
    "sparse",
    "near duplicates",
    "identical and opposite",
    "scales",
)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("p", ORDERS)
@pytest.mark.parametrize("kind", KINDS)
def test_float64_input_gives_the_formula(kind: str, p: float, form: Form) -> None:
    rows = sample(kind)
    assert_close(pairwise_cosine(rows, p, form), reference(rows, p, form), 1e-9)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("p", ORDERS)
def test_tensors_give_the_formula(p: float, form: Form) -> None:
    rows = sample("scales")
    result = pairwise_cosine(torch.as_tensor(rows), p, form)
    assert isinstance(result, torch.Tensor)
    assert_close(result.numpy(), reference(rows, p, form), 1e-9)


def test_cosine_is_one_entry_of_the_matrix() -> None:
    rows = sample("normal")
    assert cosine(rows[1], rows[4]) == pairwise_cosine(rows[[1, 4]])[0, 1]


def test_hand_computed() -> None:
    # |u+v|_4^4 = 1 + 81 = 82, |u-v|_4^4 = 1 + 1 = 2, |u|_4 = 2^(1/4), |v|_4 = 2.
    expected = (math.sqrt(82) - math.sqrt(2)) / (4 * 2**0.25 * 2)
    assert cosine(np.array([1.0, 1.0]), np.array([0.0, 2.0])) == pytest.approx(expected, abs=1e-12)


def test_order_two_is_the_cosine() -> None:
    u, v = sample("normal")[:2]
    assert cosine(u, v, 2) == pytest.approx(1 - scipy_cosine_distance(u, v), abs=1e-12)


@pytest.mark.parametrize("p", [3, 4])
def test_very_unequal_scales_have_the_limit_of_the_formula(p: int) -> None:
    # (|u+sv|^2 - |u-sv|^2) / (4 s |u| |v|) tends to sum(sign(u) |u|^(p-1) v) / (|u|^(p-1) |v|).
    u, v = sample("normal")[:2]
    norm_u, norm_v = np.linalg.norm(u, p), np.linalg.norm(v, p)
    limit = (np.sign(u) * np.abs(u) ** (p - 1) * v).sum() / (norm_u ** (p - 1) * norm_v)
    assert cosine(u, 1e-40 * v, p) == pytest.approx(limit, abs=1e-12)


def test_powers_do_not_overflow() -> None:
    rows = sample("normal").astype(np.float16)
    huge = rows.astype(np.float64) * 1e100
    assert_close(pairwise_cosine(huge), reference(rows, 4, "squared"), 1e-9)


@pytest.mark.parametrize("dtype", [np.float16, np.int8])
def test_narrow_types_are_widened(dtype: type) -> None:
    rows = np.clip(40 * sample("normal"), -127, 127).astype(dtype)
    rows[0, 0] = -128  # has no negative in int8
    assert_close(pairwise_cosine(rows), reference(rows, 4, "squared"), 1e-6)


def test_bfloat16_tensors_are_widened() -> None:
    rows = torch.as_tensor(sample("normal")).to(torch.bfloat16)
    expected = reference(rows.to(torch.float64).numpy(), 4, "squared")
    assert_close(pairwise_cosine(rows).numpy(), expected, 1e-6)


def test_a_sequence_of_vectors_is_as_good_as_a_matrix() -> None:
    rows = sample("normal")
    np.testing.assert_array_equal(pairwise_cosine(list(rows)), pairwise_cosine(rows))


@pytest.mark.parametrize("first", [np.float16, np.float32, np.int8, np.uint8])
def test_a_sequence_is_scored_in_the_precision_of_its_widest_vector(first: type) -> None:
    narrow, wide = np.arange(1, 51).astype(first), 1e200 * sample("normal")[0, :50]
    assert cosine(narrow, wide) == cosine(wide, narrow)
    assert cosine(narrow, wide, form="normalized") == pytest.approx(
        cosine(narrow.astype(float), wide / 1e200, form="normalized"), abs=1e-9
    )


@pytest.mark.parametrize("p", [1, 99, 99.5, 100])
@pytest.mark.parametrize("form", FORMS)
def test_the_largest_orders_are_numbers(p: float, form: Form) -> None:
    assert np.isfinite(pairwise_cosine(sample("scales"), p, form)).all()


@pytest.mark.parametrize("p", [3, 4])
@pytest.mark.parametrize("form", FORMS)
def test_a_zero_vector_is_like_nothing(p: int, form: Form) -> None:
    rows = sample("normal")
    rows[2] = 0
    similarity = pairwise_cosine(rows, p, form)
    assert not similarity[2].any()
    assert not similarity[:, 2].any()


@pytest.mark.parametrize(
    ("rows", "p", "form", "message"),
    [
        (np.ones(3), 4, "squared", r"shape \(3,\)"),
        (np.ones((0, 3)), 4, "squared", r"shape \(0, 3\)"),
        (np.ones((2, 3)), 0.5, "squared", "p is 0.5"),
        (np.ones((2, 3)), math.nan, "squared", "p is nan"),
        (np.ones((2, 3)), math.inf, "squared", "p is inf"),
        (np.ones((2, 3)), 2000, "squared", "p is 2000, want a number from 1 to 100"),
        (np.ones((2, 3)), 1e300, "power", "p is 1e\\+300"),
        (np.ones((2, 3)), "4", "squared", "p is '4'"),
        (np.ones((2, 3)), True, "squared", "p is True"),
        (np.ones((2, 3)), 4, "cubed", "form is 'cubed'"),
        (np.array([[1.0], [math.nan], [math.inf]]), 4, "squared", "rows 1, 2"),
        (np.ones((2, 3), dtype=complex), 4, "squared", "complex128"),
        ([np.ones(2), np.ones(3)], 4, "squared", r"\(2,\), \(3,\)"),
        ([np.ones(2), np.ones(2, dtype=complex)], 4, "squared", "complex128"),
        ([np.ones(2), np.array(["1", "2"])], 4, "squared", "<U1"),
        ([np.ones(2), np.ma.masked_array([1.0, 2.0])], 4, "squared", "MaskedArray"),
        ([torch.ones(2), torch.ones(2, dtype=torch.complex64)], 4, "squared", "complex64"),
        (torch.ones(2, 3).to_sparse(), 4, "squared", "sparse_coo, want dense ones"),
        (torch.ones(2, 3, dtype=torch.complex64), 4, "squared", "complex64"),
        (torch.ones(2, 3, dtype=torch.bool), 4, "squared", "torch.bool"),
    ],
)
def test_errors_name_what_was_given(
    rows: np.ndarray | list[np.ndarray] | torch.Tensor, p: float, form: Form, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        pairwise_cosine(rows, p, form)


def test_cosine_wants_two_vectors_of_one_length() -> None:
    with pytest.raises(ValueError, match=r"\(2,\) and \(3,\)"):
        cosine(np.ones(2), np.ones(3))


VALUES = st.floats(-1e6, 1e6, allow_subnormal=False).filter(lambda x: x == 0 or abs(x) > 1e-6)
MATRICES = npst.arrays(np.float64, st.tuples(st.integers(1, 5), st.integers(1, 6)), elements=VALUES)
ANY_ORDER = st.sampled_from(ORDERS)


@settings(deadline=None, max_examples=60)
@given(MATRICES, ANY_ORDER, st.sampled_from(FORMS))
def test_symmetric(rows: np.ndarray, p: float, form: Form) -> None:
    similarity = pairwise_cosine(rows, p, form)
    np.testing.assert_array_equal(similarity, similarity.T)


@settings(deadline=None, max_examples=60)
@given(MATRICES, ANY_ORDER, st.sampled_from(("squared", "normalized")))
def test_within_one(rows: np.ndarray, p: float, form: Form) -> None:
    assert np.abs(pairwise_cosine(rows, p, form)).max() <= 1.0


@settings(deadline=None, max_examples=60)
@given(MATRICES, ANY_ORDER, st.floats(1e-3, 1e3))
def test_squared_is_free_of_a_common_factor(rows: np.ndarray, p: float, factor: float) -> None:
    scaled = pairwise_cosine(factor * rows, p)
    np.testing.assert_allclose(scaled, pairwise_cosine(rows, p), rtol=0, atol=1e-9)


@settings(deadline=None, max_examples=60)
@given(MATRICES, ANY_ORDER, st.lists(st.floats(1e-3, 1e3), min_size=5, max_size=5))
def test_normalized_is_free_of_any_factors(
    rows: np.ndarray, p: float, factors: list[float]
) -> None:
    scaled = pairwise_cosine(np.array(factors)[: len(rows), None] * rows, p, "normalized")
    expected = pairwise_cosine(rows, p, "normalized")
    np.testing.assert_allclose(scaled, expected, rtol=0, atol=1e-7)


@settings(deadline=None, max_examples=60)
@given(MATRICES, ANY_ORDER, st.randoms(use_true_random=False))
def test_permuted_rows_permute_the_matrix(rows: np.ndarray, p: float, random: object) -> None:
    order = np.arange(len(rows))
    random.shuffle(order)  # type: ignore[attr-defined]
    permuted = pairwise_cosine(rows[order], p)
    np.testing.assert_allclose(permuted, pairwise_cosine(rows, p)[np.ix_(order, order)], atol=1e-9)


@pytest.mark.parametrize("p", [4, 6])
def test_pairs_that_cancel_are_right_among_many_rows(p: int) -> None:
    # More pairs than are scored at a time: those that cancel lie in the last chunk of rows.
    rows = np.random.default_rng(0).standard_normal((600, 40))
    rows[-1] = rows[-2] * (1 + 1e-6 * rows[0])
    rows[-3] = -rows[-4]
    similarity = pairwise_cosine(rows, p)
    for column in (-1, -3):
        expected = [cosine(row, rows[column], p) for row in rows]
        np.testing.assert_allclose(similarity[:, column], expected, rtol=0, atol=1e-10)


def test_layers_are_averaged_with_equal_weights() -> None:
    layers = {"a": np.array([[1.0, 0.5], [0.5, 1.0]]), "b": np.array([[1.0, -0.1], [-0.1, 1.0]])}
    np.testing.assert_allclose(layered_cosine(layers), [[1.0, 0.2], [0.2, 1.0]], atol=1e-15)


def test_only_proportions_of_layer_weights_matter() -> None:
    layers = {"a": np.array([[1.0, 0.5], [0.5, 1.0]]), "b": np.array([[1.0, -0.1], [-0.1, 1.0]])}
    weighted = layered_cosine(layers, {"a": 6, "b": 2})
    np.testing.assert_allclose(weighted, [[1.0, 0.35], [0.35, 1.0]], atol=1e-15)
