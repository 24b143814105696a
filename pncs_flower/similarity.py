"""Power-norm cosine similarity: how alike gradients are, for every pair of clients."""

from collections.abc import Mapping
from math import comb
from numbers import Real
from typing import Any, Literal, get_args

import numpy as np

from pncs_flower.rows import Array, Precision, Rows

Form = Literal["squared", "normalized", "printed", "power"]
"""What cos_p means: see `cosine`."""

FORMS: tuple[Form, ...] = get_args(Form)

_SMALLEST_RATIO = 1e-290  # of two norms; below it the similarity has long reached its limit
_LARGEST_ORDER = 100  # beyond some 1,000, coefficients and powers leave float64
_CHUNK = 1 << 18  # pairs scored at a time, which bounds the temporaries
_ROUNDING: dict[Precision, float] = {"float32": 3e-8, "float64": 1e-15}  # of a block's products
_TOLERANCE: dict[Precision, float] = {"float32": 3e-7, "float64": 1e-10}  # of a similarity
_FLOAT32_ROWS = 64  # with fewer rows, or fewer values, products take next to no time
_FLOAT32_VALUES = 16_384
_MANY_PAIRS = 16  # times K: from so many ill-conditioned pairs on, float64 products are quicker
_UNEQUAL = 1e-5  # ratio of norms below which the difference of two sums loses too many digits


def cosine(u: Array, v: Array, p: float = 4, form: Form = "squared") -> float:
    """Return the power-norm cosine similarity of two vectors: cos_p of PNCS, arXiv:2506.15923.

    Parameters
    ----------
    u, v : np.ndarray or torch.Tensor
        Shape (d,), real.
    p : float (default: 4)
        Order of the norm, 1 to 100.
    form : {"squared", "normalized", "printed", "power"} (default: "squared")
        How the paper's formula is read. With ``|u|`` for the p-norm:

        - ``"squared"``: ``(|u+v|^2 - |u-v|^2) / (4 |u| |v|)``, the cosine at p = 2, in [-1, 1];
        - ``"normalized"``: the same after dividing each vector by its norm;
        - ``"printed"``: ``(|u+v| - |u-v|) / (4 |u| |v|)``, as the paper has it: the value depends
          on the vectors' scale, and cos(g, g) is ``1 / (2 |g|)``;
        - ``"power"``: ``(|u+v|^p - |u-v|^p) / (|2u|^p |2v|^p)^(1/2)``, the cosine at p = 2, 1 for
          (g, g), else unbounded.

    Returns
    -------
    float
        0 if either vector is zero.

    Raises
    ------
    ValueError
        If shapes differ or are not one-dimensional, a value is not finite, or ``p`` or ``form`` is
        not allowed.
    """
    u, v = (vector if hasattr(vector, "ndim") else np.asarray(vector) for vector in (u, v))
    if u.ndim != 1 or u.shape != v.shape:
        raise ValueError(
            f"vectors of shapes {tuple(u.shape)} and {tuple(v.shape)}, want one dimension and "
            "equal length: flatten them"
        )
    return float(pairwise_cosine([u, v], p, form)[0, 1])


def pairwise_cosine(gradients: Any, p: float = 4, form: Form = "squared") -> Array:
    """Return the power-norm cosine similarities of all pairs of vectors.

    Even p takes p / 2 matrix products, and pairs that cancel in them (u near v or -v) once more;
    other p a pass over each pair. Coordinates are read in blocks of a few megabytes.

    Parameters
    ----------
    gradients : np.ndarray, torch.Tensor or sequence of either
        Shape (K, d), or K vectors of d values each; real, also memory-mapped, float16, int8 or
        torch.bfloat16. Tensors are scored on their device (tested on the CPU; no one has run it on
        a GPU yet).
    p, form
        As in `cosine`.

    Returns
    -------
    np.ndarray or torch.Tensor
        Shape (K, K), float64, symmetric. The row and the column of a zero vector are 0.

    Raises
    ------
    ValueError
        If the shape is not (K, d), a value is not finite (the message names the rows), or ``p`` or
        ``form`` is not allowed.
    """
    check_parameters(p, form)
    rows = Rows.of(gradients)
    largest = rows.largest_magnitudes()
    broken = np.flatnonzero(~np.isfinite(largest))
    if len(broken):
        raise ValueError(
            f"gradients of rows {', '.join(map(str, broken))} are not finite: leave these out"
        )
    # Powers of two, so that scaling rounds nothing; what is left lies within [1, 2), or below if
    # the inverse of the scale would overflow.
    smallest = np.finfo(rows.precision).smallest_normal
    scales = np.maximum(np.ldexp(1.0, np.frexp(largest)[1] - 1), smallest)
    if p % 2 == 0:
        similarity = _by_products(rows, scales, int(p), form)
    else:
        similarity = _by_pairs(rows, scales, p, form)
    zero = rows.beside(np.flatnonzero(largest == 0))
    similarity[zero] = 0.0
    similarity[:, zero] = 0.0
    return similarity


def layered_cosine(
    similarities: Mapping[str, np.ndarray], weights: Mapping[str, float] | None = None
) -> np.ndarray:
    """Return the mean over layers of (K, K) similarities, in the proportions of the weights."""
    weights = weights or dict.fromkeys(similarities, 1.0)
    total = sum(weights.values())
    layers = sorted(similarities)  # the sum must not depend on the order of a mapping
    return np.asarray(sum(weights[layer] / total * similarities[layer] for layer in layers))


def check_parameters(p: float, form: str) -> None:
    """Raise ValueError unless p is a number from 1 to 100 and the form exists."""
    if isinstance(p, bool) or not isinstance(p, Real) or not 1 <= p <= _LARGEST_ORDER:
        raise ValueError(f"p is {p!r}, want a number from 1 to {_LARGEST_ORDER}; the paper takes 4")
    if form not in FORMS:
        raise ValueError(f"form is {form!r}, want one of {', '.join(FORMS)}")


def _by_products(rows: Rows, scales: np.ndarray, p: int, form: Form) -> Array:
    """All pairs from matrix products, and those that cancel in them once more, one by one."""
    xp = rows.xp
    for precision in dict.fromkeys((_product_precision(rows, form), "float64")):
        products = rows.power_products(scales, p, precision)
        # <u^(p/2), u^(p/2)> is |u|^p; a zero row has none, and its similarities are cleared later.
        relative = xp.diagonal(products[-1]) ** (1 / p)
        relative = xp.where(relative == 0, xp.ones_like(relative), relative)
        for j, product in enumerate(products, start=1):
            product /= relative[:, None] ** (p - j)
            product /= relative[None, :] ** j
        norms = relative * rows.beside(scales)
        similarity, (first, second, high, gap) = score_products(
            xp, products, norms, p, form, _threshold(p, form, precision, rows.precision)
        )
        if len(first) <= _MANY_PAIRS * rows.num_rows:
            break
    if len(first):
        ratio, larger, divisors = _scales(xp, norms[first], norms[second], form)
        divisors[1] *= -xp.sign(gap)
        low = rows.pair_power_sums(first, second, divisors, p)
        values = _score(xp, p, form, high, low, gap, ratio, larger)
        similarity[first, second] = values
        similarity[second, first] = values
    return similarity


def _by_pairs(rows: Rows, scales: np.ndarray, p: float, form: Form) -> Array:
    """All pairs, a pass over the coordinates of each."""
    xp = rows.xp
    norms = rows.power_norms(scales, p)
    norms = xp.where(norms == 0, xp.ones_like(norms), norms) * rows.beside(scales)
    first, second = map(rows.beside, np.triu_indices(rows.num_rows, 1))
    ratio, larger, divisors = _scales(xp, norms[first], norms[second], form)
    plus = rows.pair_power_sums(first, second, divisors, p)
    divisors[1] *= -1
    minus = rows.pair_power_sums(first, second, divisors, p)
    gap = plus - minus
    unequal = ratio < _UNEQUAL
    if unequal.any():
        divisors[1] *= -1
        gap[unequal] = rows.pair_gaps(first[unequal], second[unequal], divisors[:, unequal], p)
    high, low = xp.maximum(plus, minus), xp.minimum(plus, minus)
    similarity = rows.zeros(rows.num_rows, rows.num_rows)
    similarity[first, second] = _score(xp, p, form, high, low, gap / ratio, ratio, larger)
    return _mirrored(xp, similarity, norms, form)


def _scales(xp: Any, first: Array, second: Array, form: Form) -> tuple[Array, Array, Array]:
    """Return `_norm_ratio` of pairs, and what u and v of each are divided by, shape (2, n)."""
    ratio, larger = _norm_ratio(xp, first, second, form)
    own = xp.stack([first, second])
    if form == "normalized":
        return ratio, larger, own
    # Where the form leaves their scales alone, by the larger norm, so that equal values cancel
    # exactly; a vector too small beside the other is taken to be as large as the ratio says.
    small = own / larger < _SMALLEST_RATIO
    return ratio, larger, xp.where(small, own / _SMALLEST_RATIO, larger)


def _product_precision(rows: Rows, form: Form) -> Precision:
    """Return float32 for matrix products where that is much faster and good enough."""
    # Float32 sums are good enough if there are many blocks over which their errors average out. A
    # form without bounds must be right relative to its value, which may be near 0.
    large = rows.num_rows >= _FLOAT32_ROWS and rows.num_values >= _FLOAT32_VALUES
    return rows.precision if large and form in ("squared", "normalized") else "float64"


def _threshold(p: int, form: Form, precision: Precision, wanted: Precision) -> float:
    """Return the part of the larger norm^p below which the smaller is not exact enough."""
    # An error e of both sums makes one of (k / p) e (low / high)^(k/p - 1) in low^(k/p).
    k = {"squared": 2, "normalized": 2, "printed": 1, "power": p}[form]
    if k >= p or _ROUNDING[precision] ** (k / p) <= _TOLERANCE[wanted]:
        return 0.0  # exact enough even where nothing but the error is left of low
    error = k / p * _ROUNDING[precision] / _TOLERANCE[wanted]
    return float(error ** (1 / (1 - k / p)))


def _norm_ratio(xp: Any, first: Array, second: Array, form: Form) -> tuple[Array, Array]:
    """Return smaller / larger norm and the larger norm of pairs, as the form sees them."""
    larger = xp.maximum(first, second)
    if form == "normalized":
        return xp.ones_like(larger), xp.ones_like(larger)
    return xp.clip(xp.minimum(first, second) / larger, _SMALLEST_RATIO, 1.0), larger


def _score(
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
        ratio, larger = _norm_ratio(xp, norms[rows, None], norms[None, :], form)
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
        similarity[rows] = _score(xp, p, form, high, low, gap, ratio, larger)
        first, second = xp.argwhere(xp.triu(low < threshold * high, start + 1)).T
        reported.append((start + first, second, high[first, second], gap[first, second]))
    close = [xp.concatenate(parts) for parts in zip(*reported, strict=True)]
    return _mirrored(xp, similarity, norms, form), close


def _mirrored(xp: Any, similarity: Array, norms: Array, form: Form) -> Array:
    """Return similarities with the upper triangle below too, and each vector's with itself."""
    upper = xp.triu(similarity, 1)
    similarity = upper + upper.T
    places = xp.argwhere(norms == norms)[:, 0]
    similarity[places, places] = 0.5 / norms if form == "printed" else xp.ones_like(norms)
    return similarity
