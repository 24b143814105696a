"""Power-norm cosine similarity: how alike gradients are, for every pair of clients."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from pncs_flower import forms
from pncs_flower.forms import FORMS, Form
from pncs_flower.rows import Array, Precision, Rows

__all__ = ["FORMS", "Form", "cosine", "layered_cosine", "pairwise_cosine"]

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
        How the paper's formula is read. With |.| for the p-norm:

        - ``"squared"``: (|u+v|^2 - |u-v|^2) / (4 |u| |v|), the cosine at p = 2, in [-1, 1];
        - ``"normalized"``: the same after dividing each vector by its norm;
        - ``"printed"``: (|u+v| - |u-v|) / (4 |u| |v|), as the paper has it: the value depends on
          the vectors' scale, and cos(g, g) is 1 / (2 |g|);
        - ``"power"``: (|u+v|^p - |u-v|^p) / (|2u|^p |2v|^p)^(1/2), the cosine at p = 2, 1 for
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
    forms.check_parameters(p, form)
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
        similarity, (first, second, high, gap) = forms.score_products(
            xp, products, norms, p, form, _threshold(p, form, precision, rows.precision)
        )
        if len(first) <= _MANY_PAIRS * rows.num_rows:
            break
    if len(first):
        ratio, larger, divisors = _scales(xp, norms[first], norms[second], form)
        divisors[1] *= -xp.sign(gap)
        low = rows.pair_power_sums(first, second, divisors, p)
        values = forms.score(xp, p, form, high, low, gap, ratio, larger)
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
    similarity[first, second] = forms.score(xp, p, form, high, low, gap / ratio, ratio, larger)
    return forms.mirrored(xp, similarity, norms, form)


def _scales(xp: Any, first: Array, second: Array, form: Form) -> tuple[Array, Array, Array]:
    """Return `norm_ratio` of pairs, and what u and v of each are divided by, shape (2, n)."""
    ratio, larger = forms.norm_ratio(xp, first, second, form)
    own = xp.stack([first, second])
    if form == "normalized":
        return ratio, larger, own
    # Where the form leaves their scales alone, by the larger norm, so that equal values cancel
    # exactly; a vector too small beside the other is taken to be as large as the ratio says.
    small = own / larger < forms.SMALLEST_RATIO
    return ratio, larger, xp.where(small, own / forms.SMALLEST_RATIO, larger)


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
