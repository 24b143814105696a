"""Speed and memory of the similarity of all pairs, beside matrix products and a loop over pairs.

A row of the table is one matrix of gradients, float32, normal, p = 4. "of sgemm" counts two matrix
products, 4 K^2 d operations, against the rate of one large float32 product measured in the same run
(one of the two is symmetric and may cost half, so it may exceed 100 %). The loops compute one pair
after the other in float32 NumPy, timed on a sample of the pairs: "as written" takes the norms of
u + v, u - v, u and v as `(x**4).sum() ** (1 / 4)`, which NumPy computes slowly where x is negative;
"by norm" takes them from `np.linalg.norm(x, 4)`, which is several times faster; "by squares" takes
fourth powers as squares of squares and each vector's own norm once, the quickest loop we know of.
All three are for p = 4.

`--device cuda` puts the tensors on a GPU. That path is tested on the CPU through torch; nobody has
run it on a GPU yet.

Examples
--------
python benchmarks/similarity.py
python benchmarks/similarity.py --rows 100 --values 40970 1000000
python benchmarks/similarity.py --library torch --device cuda
python benchmarks/similarity.py --memory
"""

import argparse
import subprocess
import sys
import tempfile
from functools import partial
from itertools import combinations, islice
from pathlib import Path
from typing import Any

import numpy as np
from measure import extra_megabytes, machine, seconds

from pncs_flower import pairwise_cosine

MAPPED = (10, 16_781_312)  # ten clients' gradients of Linear(4096, 4096)
DENSE = (1000, 40_970)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, nargs="+", default=[10, 100, 1000], help="clients, K")
    parser.add_argument(
        "--values", type=int, nargs="+", default=[40_970], help="gradient values, d"
    )
    parser.add_argument("--library", choices=["numpy", "torch"], default="numpy")
    parser.add_argument("--device", default="cpu", help="of torch, such as cuda")
    parser.add_argument("--order", type=float, default=4, help="p")
    parser.add_argument("--memory", action="store_true", help="measure memory instead of time")
    parser.add_argument("--memory-of", choices=["dense", "mapped"], help=argparse.SUPPRESS)
    parser.add_argument("--file", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.memory_of:
        print(memory_of(options.memory_of, options.file))
        return
    print(machine())
    if options.memory:
        print_memory()
        return
    place = Place(options.library, options.device)
    print(
        f"{options.library} on {place.name}: {place.peak() / 1e9:.0f} GFLOP/s in float32 products"
    )
    print(
        f"{'K':>6} {'d':>10} {'seconds':>9} {'of sgemm':>9} {'as written':>11} {'by norm':>11} "
        f"{'by squares':>11}"
    )
    for num_rows in options.rows:
        for num_values in options.values:
            rows = place.random(num_rows, num_values)
            peak = place.peak()
            taken = seconds(partial(place.score, rows, options.order))
            rate = 4 * num_rows**2 * num_values / taken / peak
            loops = "".join(
                f"{loop / taken:>11.0f}x" for loop in loop_seconds(num_rows, num_values)
            )
            print(f"{num_rows:>6} {num_values:>10} {taken:>9.4f} {rate:>9.0%}{loops}", flush=True)


class Place:
    """Where the arrays are."""

    def __init__(self, library: str, device: str) -> None:
        self.torch: Any = None
        self.device = device
        self.name = "cpu"
        if library == "torch":
            import torch

            self.torch = torch
            cuda = torch.device(device).type == "cuda"
            self.name = torch.cuda.get_device_name(device) if cuda else device

    def random(self, num_rows: int, num_values: int) -> Any:
        if self.torch is None:
            return np.random.default_rng(0).standard_normal((num_rows, num_values), np.float32)
        self.torch.manual_seed(0)
        return self.torch.randn(num_rows, num_values, device=self.device)

    def score(self, rows: Any, order: float) -> Any:
        return self.wait(pairwise_cosine(rows, order))

    def wait(self, result: Any) -> Any:
        """Return when the device has finished."""
        if self.torch is not None and self.torch.device(self.device).type == "cuda":
            self.torch.cuda.synchronize(self.device)
        return result

    def peak(self, size: int = 3000) -> float:
        """Return the operations per second of a float32 matrix product."""
        left, right = self.random(size, size), self.random(size, size)
        return 2 * size**3 / seconds(lambda: self.wait(left @ right))


def loop_seconds(num_rows: int, num_values: int, sample: int = 20) -> list[float]:
    """Return the times of the three loops over all pairs, from a sample of the pairs."""
    rows = np.random.default_rng(0).standard_normal((min(num_rows, 10), num_values), np.float32)
    pairs = list(islice(combinations(range(len(rows)), 2), sample))
    norm = np.linalg.norm
    norms = [norm(row, 4) for row in rows]

    def plain_norm(x: np.ndarray) -> float:
        return float((x**4).sum() ** (1 / 4))

    def as_written() -> None:
        for i, j in pairs:
            u, v = rows[i], rows[j]
            plus, minus = plain_norm(u + v), plain_norm(u - v)
            (plus**2 - minus**2) / (4 * plain_norm(u) * plain_norm(v))

    def by_norm() -> None:
        for i, j in pairs:
            u, v = rows[i], rows[j]
            (norm(u + v, 4) ** 2 - norm(u - v, 4) ** 2) / (4 * norm(u, 4) * norm(v, 4))

    def by_squares() -> None:
        for i, j in pairs:
            plus, minus = rows[i] + rows[j], rows[i] - rows[j]
            for x in (plus, minus):
                np.square(x, out=x)
                np.square(x, out=x)
            (plus.sum() ** 0.5 - minus.sum() ** 0.5) / (4 * norms[i] * norms[j])

    all_pairs = num_rows * (num_rows - 1) / 2
    loops = (as_written, by_norm, by_squares)
    return [seconds(loop) / len(pairs) * all_pairs for loop in loops]


def print_memory() -> None:
    """Measure each case in a process of its own."""
    print(f"{'K':>6} {'d':>10} {'input':>14} {'own memory beyond it':>21}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "gradients.npy")
        mapped = np.lib.format.open_memmap(path, "w+", np.float32, MAPPED)
        for number, row in enumerate(mapped):
            row[:] = np.random.default_rng(number).standard_normal(MAPPED[1], np.float32)
        mapped.flush()
        for case, shape in (("dense", DENSE), ("mapped", MAPPED)):
            command = [sys.executable, __file__, "--memory-of", case, "--file", str(path)]
            output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            megabytes = shape[0] * shape[1] * 4 / 2**20
            print(
                f"{shape[0]:>6} {shape[1]:>10} {case:>7} {megabytes:>3.0f} MB "
                f"{float(output):>18.0f} MB"
            )


def memory_of(case: str, file: Path) -> float:
    if case == "mapped":
        rows = np.load(file, mmap_mode="r")
    else:
        rows = np.random.default_rng(0).standard_normal(DENSE, np.float32)
    return extra_megabytes(lambda: pairwise_cosine(rows))


if __name__ == "__main__":
    main()
