"""Speed and quality of the subset search.

"all" looks at every subset and proves the best; the others search for the default number of steps.
The instances MDG-a are whole numbers from 0 to 10, uniform, of which the sum over pairs is
maximised (so their negatives are minimised): with `--reference SECONDS` the same search runs for so
long, from another seed, and "gap" is how far the default stays below the better of the two.

Examples
--------
python benchmarks/subset.py
python benchmarks/subset.py --reference 600
"""

import argparse
import time
from math import comb

import numpy as np
from measure import machine

from pncs_flower import least_aligned_subset

FEW = [(24, 12), (26, 9), (40, 6), (57, 5), (100, 4), (100, 96), (311, 3), (3162, 2)]
MDG = [(1000, 100, 1), (1000, 100, 2), (2000, 200, 1), (2000, 200, 2)]
LARGE = [(10_000, 20)]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--reference", type=float, help="seconds of a long search, for each MDG-a")
    parser.add_argument("--largest", type=int, default=10_000, help="leave out more clients (K)")
    options = parser.parse_args(arguments)
    print(machine())
    print(f"{'case':<12} {'K':>6} {'S':>4} {'subsets':>10} {'seconds':>8} {'mean':>10} {'gap':>7}")
    for num_clients, size in FEW:
        if num_clients <= options.largest:
            random = np.random.default_rng(num_clients).standard_normal((num_clients, num_clients))
            report("all", (random + random.T) / 2, size)
    for num_clients, size, seed in MDG:
        if num_clients <= options.largest:
            report("MDG-a", mdg_a(num_clients, seed), size, options.reference)
    for num_clients, size in LARGE:
        if num_clients <= options.largest:
            vectors = np.random.default_rng(0).standard_normal((num_clients, 30))
            vectors /= np.linalg.norm(vectors, axis=1)[:, None]
            similarity = vectors @ vectors.T
            report("cosines", np.minimum(similarity, similarity.T), size)


def mdg_a(num_clients: int, seed: int) -> np.ndarray:
    random = np.random.default_rng(seed)
    distances = np.triu(random.integers(0, 11, (num_clients, num_clients)), 1)
    return -np.asarray(distances + distances.T, dtype=np.float64)


def report(case: str, similarity: np.ndarray, size: int, reference: float | None = None) -> None:
    start = time.perf_counter()
    subset = least_aligned_subset(similarity, size)
    taken = time.perf_counter() - start
    count = comb(len(similarity), size)
    gap = "proved" if subset.optimal else ""
    if reference is not None:
        longer = least_aligned_subset(similarity, size, seed=1, budget_seconds=reference)
        best = min(longer.mean_similarity, subset.mean_similarity)
        gap = f"{(best - subset.mean_similarity) / best:.3%}"
    print(
        f"{case:<12} {len(similarity):>6} {size:>4} {count:>10.2g} {taken:>8.3f} "
        f"{subset.mean_similarity:>10.5f} {gap:>7}",
        flush=True,
    )


if __name__ == "__main__":
    main()
