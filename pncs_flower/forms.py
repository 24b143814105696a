"""What cos_p means: from norms of sums and differences to a similarity, in four forms."""

from math import comb
from numbers import Real
from typing import Any, Literal, get_args

import numpy as np

from pncs_flower.rows import Array

__all__ = [
    "FORMS",
    "SMALLEST_RATIO",
    "Form",
    "check_parameters",
    "mirrored",
    "norm_ratio",
    "score",
    "score_products",
]

Form = Literal["squared", "normalized", "printed", "power"]
"""What cos_p means: see `pncs_flower.cosine`."""

FORMS: tuple[Form, ...] = get_args(Form)

SMALLEST_RATIO = 1e-290  # of two norms; below it the similarity has long reached its limit
_LARGEST_ORDER = 100  # beyond some 1,000, coefficients and powers leave float64
_CHUNK = 1 << 18  # pairs scored at a time, which bounds the temporaries


def check_parameters(p: float, form: str) -> None:
    """Raise ValueError unless p is a number from 1 to 100 and the form exists."""
    if isinstance(p, bool) or not isinstance(p, Real) or not 1 <= p <= _LARGEST_ORDER:
        raise ValueError(f"p is {p!r}, want a number from 1 to {_LARGEST_ORDER}; the paper takes 4")
    if form not in FORMS:
        raise ValueError(f"form is {form!r}, want one of {', '.join(FORMS)}")


def norm_ratio(xp: Any, first: Array, second: Array, form: Form) -> tuple[Array, Array]:
    """Return smaller / larger norm and the larger norm of pairs, as the form sees them."""
    larger = xp.maximum(first, second)
    if form == "normalized":
        return xp.ones_like(larger), xp.ones_like(larger)
    return xp.clip(xp.minimum(first, second) / larger, SMALLEST_RATIO, 1.0), larger


def score(
    xp: Any, p: float, form: Form, high: Array, low: Array, gap: Array, ratio: Array, larger: Array
) -> Array:
    """Return cos_p of pairs from the larger and smaller of |u+v|^p and |u-v|^p, in larger norms."""
    # ``gap`` is (|u+v|^p - |u-v|^p) / ratio, which stays away from 0 as the ratio shrinks.
    if form == "power":
        return gap * ratio ** (1 - p / 2) / 2**p
    # high^k - low^k = -high^k expm1(k log(low / high)) without cancellation: where the two are
    # close, their logarithms differ by log1p of the gap.
    k = 1 / p if form == "printed" else 2 / p
    high = xp.clip(high, 0.5, None)  # it is at least 1, except between zero vectors
    drop = xp.abs(gap) * ratio / high
    with np.errstate(divide="ignore"):  # low = 0: expm1(-inf) is right
        log_ratio = xp.where(
            drop < 0.5, xp.log1p(-xp.clip(drop, 0.0, 0.5)), xp.log(xp.clip(low / high, 0.0, 1.0))
        )
    value = -xp.sign(gap) * high**k * xp.expm1(k * log_ratio) / (4 * ratio)
    return value / larger if form == "printed" else xp.clip(value, -1.0, 1.0)


def score_products(
    xp: Any, products: list[Array], norms: Array, p: int, form: Form, threshold: float = 0.0
) -> tuple[Array, list[Array]]:
    """Return cos_p of all pairs, and those (first, second, high, gap) with low < threshold high."""
    # With s = |v| / |u| at most 1, and u and v divided by their p-norms,
    # |u ± s v|_p^p = sum over j from 0 to p of C(p, j) (±s)^j <u^(p-j), v^j>;
    # ``products[j - 1]`` holds <u^(p-j), v^j> of the unit vectors, for j = 1 to p / 2.
    size = len(norms)
    similarity = xp.empty_like(products[0])
    reported = []
    for start in range(0, size, max(1, _CHUNK // size)):
        rows = slice(start, start + max(1, _CHUNK // size))
        ratio, larger = norm_ratio(xp, norms[rows, None], norms[None, :], form)
        row_is_larger = norms[rows, None] >= norms[None, :]
        even, gap = 1 + ratio**p, xp.zeros_like(ratio)
        for j in range(1, p):
            # <u^(p-j), v^j> with u the larger; beyond the half it is a transpose.
            by_row, by_column = products[min(j, p - j) - 1], products[min(j, p - j) - 1].T
            if j > p - j:
                by_row, by_column = by_column, by_row
            term = comb(p, j) * xp.where(row_is_larger, by_row[rows], by_column[rows])
            if j % 2:
                gap += 2 * ratio ** (j - 1) * term
            else:
                even += ratio**j * term
        swing = xp.abs(gap) * ratio / 2
        high, low = even + swing, xp.clip(even - swing, 0.0, None)
        similarity[rows] = score(xp, p, form, high, low, gap, ratio, larger)
        first, second = xp.argwhere(xp.triu(low < threshold * high, start + 1)).T
        reported.append((start + first, second, high[first, second], gap[first, second]))
    close = [xp.concatenate(parts) for parts in zip(*reported, strict=True)]
    return mirrored(xp, similarity, norms, form), close


def mirrored(xp: Any, similarity: Array, norms: Array, form: Form) -> Array:
    """Return similarities with the upper triangle below too, and each vector's with itself."""
    upper = xp.triu(similarity, 1)
    similarity = upper + upper.T
    places = xp.argwhere(norms == norms)[:, 0]
    similarity[places, places] = 0.5 / norms if form == "printed" else xp.ones_like(norms)
    return similarity
