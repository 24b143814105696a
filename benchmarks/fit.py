"""Speed of the sketched mean's fit: M stored sketches of r numbers, S of K clients chosen.

"store" makes a fit of the stored sketches, "solve" finds their coefficients, and "pursuit" chooses.
"BLAS" is the same by NumPy's matrix products and `numpy.linalg.solve`, whose last bits depend on
the number of threads; the ratio is ours over it. "at bound" counts the coefficients at the bound.

Examples
--------
python benchmarks/fit.py
OMP_NUM_THREADS=1 python benchmarks/fit.py --largest 100
"""

import argparse

import numpy as np
from measure import machine, seconds

from pncs_flower.fit import SketchFit

CASES = [(10, 20, 2, 256), (100, 100, 10, 256), (1000, 100, 20, 1024), (1000, 1000, 20, 1024)]
RIDGE = 0.01


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--largest", type=int, default=1000, help="leave out more clients (K)")
    options = parser.parse_args(arguments)
    print(machine())
    print(f"{'K':>5} {'M':>5} {'S':>3} {'r':>5} {'bound':>6}", end="")
    print("".join(f"{name:>9} ms {'/ BLAS':>7}" for name in ("store", "solve", "pursuit")), end="")
    print(f" {'at bound':>9}")
    for case in CASES:
        if case[0] <= options.largest:
            for bound in (np.inf, 2 / case[1]):
                report(*case, bound)


def report(num_clients: int, num_stored: int, size: int, numbers: int, bound: float) -> None:
    random = np.random.default_rng(0)
    names = [str(number) for number in range(num_clients)]
    shared = random.standard_normal((30, numbers))
    rows = random.standard_normal((num_clients, 30)) @ shared
    rows += random.standard_normal(rows.shape)
    owners = [names[number] for number in random.integers(0, num_clients, num_stored)]
    stored = rows[[int(owner) for owner in owners]]
    stored = stored + 0.5 * random.standard_normal(stored.shape)
    start = SketchFit(3 * rows.mean(axis=0), dict.fromkeys(names, 1.0), ridge=RIDGE, bound=bound)
    fit = start.with_columns(owners, stored)
    gram = stored @ stored.T
    own = [
        seconds(lambda: start.with_columns(owners, stored)),
        seconds(fit.coefficients),
        seconds(lambda: fit.pursue(names, rows, size), repeats=2),
    ]
    blas = [
        seconds(lambda: stored @ stored.T),
        seconds(lambda: solve(gram, fit.columns @ fit.target, fit.prior)),
        seconds(lambda: pursue(fit, names, rows, size), repeats=2),
    ]
    print(f"{num_clients:>5} {num_stored:>5} {size:>3} {numbers:>5} {bound:>6}", end="")
    times = zip(own, blas, strict=True)
    print("".join(f"{ours * 1e3:>12.2f} {ours / theirs:>7.1f}" for ours, theirs in times), end="")
    print(f" {np.isclose(abs(fit.coefficients()), bound).sum():>9}", flush=True)


def solve(gram: np.ndarray, projections: np.ndarray, prior: np.ndarray) -> np.ndarray:
    penalties = RIDGE * np.diagonal(gram)
    return np.linalg.solve(gram + np.diag(penalties), projections + penalties * prior)


def pursue(fit: SketchFit, names: list[str], rows: np.ndarray, size: int) -> None:
    """The same pursuit without a bound, by BLAS."""
    norms, chosen = np.linalg.norm(rows, axis=1), list[int]()
    gram = fit.columns @ fit.columns.T
    for _ in range(size):
        coefficients = solve(gram, fit.columns @ fit.target, fit.prior)
        scores = np.abs(rows @ (fit.target - coefficients @ fit.columns)) / norms
        scores[chosen] = -1
        chosen.append(int(np.argmax(scores)))
        fit = fit.with_columns([names[chosen[-1]]], rows[chosen[-1:]])
        products = fit.columns @ fit.columns[-1]
        gram = np.block([[gram, products[:-1, None]], [products]])


if __name__ == "__main__":
    main()
