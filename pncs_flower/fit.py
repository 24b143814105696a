"""Ridge regression of a sketch on other sketches, and the choice of those that fit it best."""

# No BLAS: its threads add up in other orders, and the bits must be the same on every engine.
# Values within float32's range keep all that is computed here within float64's.

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from typing import Any

import numpy as np

_LEAST_RIDGE = 1e-9  # relative to |a_j|^2: equal columns share, and no factor breaks down
_TOLERANCE = 1e-12  # of a gradient, relative to the terms it is the sum of
_MOST_STEPS = 1000  # a handful is usual


class SketchFit:
    """The best approximation of a sketch by columns, each the sketch of a client's update.

    Immutable: `with_columns` returns another fit, so that a rule and a combination can go on from
    the same stored columns.

    Parameters
    ----------
    target : array of shape (r,)
        The sketch to approximate, t.
    weights : mapping of str to float
        Each client's weight in the mean, w_k; 0 for a client that it lacks.
    ridge : float (default: 0.01)
        Weight λ of the penalties.
    bound : float (default: inf)
        Largest magnitude of a coefficient, above 0.
    longest : float (default: inf)
        Norm of an update above which its prior is less, in proportion.

    Raises
    ------
    ValueError
        Here and by all methods, for arrays of another shape, or not finite.
    """

    def __init__(
        self,
        target: np.ndarray,
        weights: Mapping[str, float],
        *,
        ridge: float = 0.01,
        bound: float = np.inf,
        longest: float = np.inf,
    ) -> None:
        self.target = _checked("target", target, (np.size(target),))
        self.weights = weights
        self.ridge, self.bound, self.longest = ridge, bound, longest
        self.owners: tuple[str, ...] = ()
        self.columns = np.zeros((0, len(self.target)))
        self._squares = np.zeros(0)
        self._gram = np.zeros((0, 0))

    def with_columns(
        self,
        owners: Iterable[str],
        columns: np.ndarray,
        squared_norms: np.ndarray | None = None,
    ) -> "SketchFit":
        """Return a fit with columns appended, a client's older ones before its newer ones.

        Parameters
        ----------
        owners : iterable of str
            The client of each column.
        columns : array of shape (n, r)
            Their sketches, a_j.
        squared_norms : array of shape (n,), optional
            |v_j|^2 of the updates, where they are known; |a_j|^2 otherwise.
        """
        other = copy(self)
        other.owners = (*self.owners, *owners)
        old, size = len(self.owners), len(other.owners)
        shape = (size - old, len(self.target))
        other.columns = np.concatenate([self.columns, _checked("columns", columns, shape)])
        other._gram = np.zeros((size, size))
        other._gram[:old, :old] = self._gram
        for row in range(old, size):
            products = _product(other.columns[: row + 1], other.columns[row])
            other._gram[row, : row + 1] = other._gram[: row + 1, row] = products
        if squared_norms is None:
            squared_norms = np.diagonal(other._gram)[old:]
        squares = _checked("squared norms", squared_norms, shape[:1])
        other._squares = np.concatenate([self._squares, squares])
        return other

    @property
    def prior(self) -> np.ndarray:
        """Weights of each client's newest column, 0 for older ones; shape (n,), sum at most 1."""
        prior = np.zeros(len(self.owners))
        for owner, newest in {owner: at for at, owner in enumerate(self.owners)}.items():
            prior[newest] = self.weights.get(owner, 0.0)
        total, norms = prior.sum(), np.sqrt(self._squares)
        long = norms > self.longest
        prior[long] *= self.longest / norms[long]
        return prior / total if total > 0 else prior

    def coefficients(self) -> np.ndarray:
        """Return c of least |t - Σ c_j a_j|^2 + λ Σ |v_j|^2 (c_j - prior_j)^2; shape (n,)."""
        projections = _product(self.columns, self.target)
        penalties = self.ridge * self._squares
        return ridge_fit(self._gram, projections, self.prior, penalties, self.bound)

    def residual(self, coefficients: np.ndarray) -> np.ndarray:
        """Return t - Σ c_j a_j, shape (r,)."""
        fitted = np.einsum("j,jr->r", coefficients, self.columns)
        return np.asarray(self.target - fitted)

    def pursue(self, owners: Sequence[str], candidates: np.ndarray, count: int) -> list[int]:
        """Return ``count`` of the candidates, or all, in the order of choice: matching pursuit.

        After each fit the next is that of the largest |<a_k, residual>| / |a_k|, and of these the
        first (Y. Pati, R. Rezaiifar, P. Krishnaprasad, "Orthogonal matching pursuit", 1993).

        Parameters
        ----------
        owners : sequence of str
            The client of each candidate, all different.
        candidates : array of shape (K, r)
            Their sketches, a_k.
        count : int
            How many to choose.
        """
        rows = _checked("candidates", candidates, (len(owners), len(self.target)))
        norms = _norms(rows)
        norms[norms == 0] = 1.0  # such a row is aligned with nothing
        fit, chosen = self, list[int]()
        while len(chosen) < min(count, len(owners)):
            residual = fit.residual(fit.coefficients())
            alignment = np.abs(_product(rows, residual)) / norms
            alignment[chosen] = -1.0
            best = int(np.argmax(alignment))
            chosen.append(best)
            fit = fit.with_columns([owners[best]], rows[[best]])
        return chosen


def ridge_fit(
    gram: np.ndarray,
    projections: np.ndarray,
    prior: np.ndarray,
    penalties: np.ndarray,
    bound: float = np.inf,
) -> np.ndarray:
    """Return c of least |t - Σ c_j a_j|^2 + Σ penalty_j (c_j - prior_j)^2 with |c_j| <= bound.

    A penalty counts as at least 1e-9 |a_j|^2, so that equal columns share what they explain; a
    column of zeros keeps its prior.

    Parameters
    ----------
    gram : array of shape (n, n), float64
        <a_i, a_j> of the columns.
    projections : array of shape (n,), float64
        <a_j, t> with the target.
    prior, penalties : arrays of shape (n,), float64
        Where each coefficient is drawn to, and how much, 0 or more.
    bound : float (default: inf)
        Largest magnitude of a coefficient, above 0.
    """
    # In d = (c - prior) s with the scales s that give the matrix a unit diagonal: columns of
    # 1e-20 and 1e20 side by side are no less exact.
    squares = np.diagonal(gram)
    penalties = np.maximum(penalties, _LEAST_RIDGE * squares)
    penalties = np.where(squares + penalties > 0, penalties, 1.0)
    scales = np.sqrt(squares + penalties)
    matrix = gram / scales[:, None] / scales
    np.fill_diagonal(matrix, 1.0)
    right = (projections - _product(gram, prior)) / scales
    ends = (np.array([[-bound], [bound]]) - prior) * scales
    moved = _bounded_solve(matrix, right, *ends) / scales
    return np.asarray(np.clip(prior + moved, -bound, bound))


def shortened_to_median(sketches: np.ndarray, factor: float) -> np.ndarray:
    """Return rows (K, r) in float64, none longer than ``factor`` times the median of norms above 0.

    What a lie in a sketch can weigh is bounded so; the other rows are as they were.
    """
    rows = np.array(sketches, dtype=np.float64)
    norms, limit = _norms(rows), factor * median_norm(rows)
    long = norms > limit
    rows[long] *= (limit / norms[long])[:, None]
    return rows


def median_norm(sketches: np.ndarray) -> float:
    """Return the median of the norms above 0 of rows (K, r), or infinity if there is none."""
    norms = _norms(np.asarray(sketches, dtype=np.float64))
    return float(np.median(norms[norms > 0])) if norms.any() else np.inf


def _checked(name: str, values: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Return finite values in float64, or raise ValueError; none at all need not have the shape."""
    array = np.asarray(values, dtype=np.float64)
    if array.shape != shape and (array.size or 0 not in shape):
        raise ValueError(f"{name} of shape {array.shape}, want {shape}")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} that are not finite: leave out what comes with them")
    return array.reshape(shape)


def _product(matrix: np.ndarray, vector: np.ndarray) -> np.ndarray:
    return np.asarray(np.einsum("ij,j->i", matrix, vector))


def _norms(rows: np.ndarray) -> np.ndarray:
    return np.asarray(np.sqrt(np.einsum("kr,kr->k", rows, rows)))


def _bounded_solve(
    matrix: np.ndarray, right: np.ndarray, low: np.ndarray, high: np.ndarray
) -> np.ndarray:
    """Return x of least x^T A x / 2 - b^T x between the ends, for A of unit diagonal."""
    # An active set (J. Nocedal and S. Wright, "Numerical Optimization", 2006, section 16.5): go to
    # the least of those not held at an end, but no further than to the first end on the way, or,
    # if that is better, cut off what goes beyond; at a least, let go what its end does not keep.
    # No step makes it worse, so it ends, but for rounding: then it stops where it is.
    x = np.clip(np.zeros(len(right)), low, high)
    held = np.zeros(len(right), dtype=bool)
    for _ in range(_MOST_STEPS):
        free = ~held
        step = np.zeros(len(right))
        step[free] = _solve(matrix[np.ix_(free, free)], (right - _product(matrix, x))[free])
        cut = np.clip(x + step, low, high)
        beyond = cut != x + step
        if beyond.any():
            way = np.full(len(right), np.inf)
            way[beyond] = (cut - x)[beyond] / step[beyond]
            short = np.where(way == way.min(), cut, np.clip(x + way.min() * step, low, high))
            # The objective at ``cut`` less that at ``short``, without cancellation.
            change = np.einsum("i,i->", cut - short, _product(matrix, cut + short) / 2 - right)
            x = cut if change < 0 else short
            held |= beyond & (x == cut)
        else:
            x = cut
            gradient = _product(matrix, x) - right
            slack = _TOLERANCE * (np.abs(x).sum() + np.abs(right).max(initial=0.0))
            wrong = held & (np.where(x < high, -gradient, gradient) > slack)
            if not wrong.any():
                break
            held[wrong] = False
    return x


def _solve(matrix: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return A^-1 b by Cholesky's method, for A positive definite of unit diagonal."""
    # With b as one more row below A, the factor's last row is L^-1 b.
    size = len(right)
    factor = np.concatenate([matrix, right[None]])
    for j in range(size):
        factor[j:, j] -= _product(factor[j:, :j], factor[j, :j])
        factor[j:, j] /= np.sqrt(factor[j, j])
    x: np.ndarray = factor[size].copy()
    for j in reversed(range(size)):
        x[j] = (x[j] - np.einsum("i,i->", factor[j + 1 : size, j], x[j + 1 :])) / factor[j, j]
    return x
