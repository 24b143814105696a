"""Time and memory of a server's round with the sketched mean, beside FedAvg's aggregation.

All clients have sent a sketch of 256 numbers, and M updates of earlier rounds are stored. Timed are
"choosing" among all sketches and, of the S updates that the chosen deliver, "reading" them as
vectors, "verifying" their sketches, "combining" ("sketching", "fit" and "sum" are parts of it),
"replies", into which the result is put, and "storing"; "total" is the sum of these. Beside them:
"FedAvg", Flower's aggregation of the S replies, and "mean", a plain loop (``sum += w * x``,
float32, nothing allocated in it) over S + M vectors. These lie in memory as vectors: neither it nor
"combining" has what "total" has besides. A ratio is to "mean". "MB" is the peak of the process's
own memory above what it holds before, without the pages of mapped files.

Examples
--------
python benchmarks/combination_cost.py
python benchmarks/combination_cost.py --values 50000 --stores memory float16 checkpoint
"""

import argparse
import logging
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from unittest import mock

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg
from measure import extra_megabytes, machine, seconds

from pncs_flower.layers import ALL_LAYERS
from pncs_flower.protocol import SummaryRequest
from pncs_flower.sketches.kinds import parse_sketch
from pncs_flower.strategies import Round
from pncs_flower.strategies.combination import Delivery
from pncs_flower.strategies.combinations import SketchedFit, store
from pncs_flower.strategies.grids.releases import set_task_identity
from pncs_flower.strategies.replies.updates import SketchCheck
from pncs_flower.strategies.replies.vectors import Vectors

STORES = ["memory", "mapped", "float16", "checkpoint"]
REQUEST = SummaryRequest("update", "count:256", whole=True)
BEFORE, NUMBER = 1, 2  # rounds
PLAIN = ("FedAvg", "mean")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--selected", type=int, default=20, help="S")
    parser.add_argument("--stored", type=int, default=100, help="M")
    parser.add_argument("--values", type=int, nargs="+", default=[50_000, 11_000_000])
    parser.add_argument("--stores", nargs="+", choices=STORES, default=STORES)
    options = parser.parse_args(arguments)
    set_task_identity(1)
    logging.getLogger("flwr").setLevel(logging.ERROR)
    print(machine())
    print(f"{'values':>10} {'store':<10} {'step':<12} {'ms':>9} {'ratio':>6} {'MB':>6}")
    for size in options.values:
        for kind in options.stores:
            with tempfile.TemporaryDirectory(prefix="pncs-") as folder:
                report(size, kind, Path(folder), options)


def report(size: int, kind: str, folder: Path, options: argparse.Namespace) -> None:
    random = np.random.default_rng(0)
    clients = tuple(map(str, range(options.clients)))
    chosen = clients[: options.selected]
    arrays = ArrayRecord({"weight": Array(random.standard_normal(size, np.float32))})
    replies = {client: reply(arrays, random) for client in chosen}
    contents = {client: message.content for client, message in replies.items()}
    shares = dict.fromkeys(clients, 1 / len(clients))
    sketches = dict(zip(clients, random.standard_normal((len(clients), 256)), strict=True))
    combination = SketchedFit(
        store=options.stored, dtype="float16" if kind == "float16" else "float32"
    )
    combination.request(REQUEST)
    combination.begin(folder if kind == "checkpoint" else None)
    vectors, sketch = Vectors(arrays), parse_sketch("count:256")

    def read() -> dict[str, np.ndarray]:
        return {client: vectors.update(content) for client, content in contents.items()}

    def sketched(number: int) -> dict[str, np.ndarray]:
        return {
            client: sketch.of(update, seed=0, round=number, layer=ALL_LAYERS)
            for client, update in updates.items()
        }

    updates = read()
    sketches |= sketched(NUMBER)
    turns = dict.fromkeys(clients, 0)
    now = Round(NUMBER, 0, len(chosen), clients, turns, {}, clients, shares=shares)
    delivery = Delivery(now, updates, sketches)
    check = SketchCheck(
        REQUEST, {c: {ALL_LAYERS: s} for c, s in sketches.items()}, sketches, 0, NUMBER
    )
    with mock.patch.object(store, "IN_MEMORY", 0 if kind == "mapped" else 1 << 40):
        for number in range(options.stored):
            update = np.roll(updates[chosen[number % len(chosen)]], number)
            made = sketch.of(update, seed=0, round=BEFORE, layer=ALL_LAYERS)
            owner = clients[number % len(clients)]
            combination._updates.take(BEFORE, {owner: update}, {owner: made})
        change = combination.combine(delivery)
        fit = combination.fit(now, sketches)
        assert change is not None
        assert fit is not None
        fitted = fit.with_columns(updates, np.stack([*sketched(NUMBER).values()]))
        both = [*combination._updates.entries, *updates.values()]
        coefficients = fitted.coefficients()

        def choose() -> None:
            made = combination.fit(now, sketches)
            assert made is not None
            made.pursue(clients, np.stack([*sketches.values()]), len(chosen))

        def verify() -> None:
            for client, content in contents.items():
                check.check(client, arrays, content)

        def put() -> None:
            changed = vectors.changed(change.values)
            for _ in contents:
                ArrayRecord({}).update(changed)

        # All of them, unless a few are more than any cache holds.
        distinct = min(len(both), max(len(updates), 10**8 // size))
        plain = [np.array(updates[chosen[n % len(chosen)]]) for n in range(distinct)]
        steps: dict[str, Callable[[], object]] = {
            "choosing": choose,
            "reading": read,
            "verifying": verify,
            "combining": lambda: combination.combine(delivery),
            "  sketching": lambda: sketched(NUMBER),
            "  fit": fitted.coefficients,
            "  sum": lambda: store.weighted_sum(both, coefficients),
            "replies": put,
            "FedAvg": lambda: FedAvg(weighted_by_key="num-examples").aggregate_train(
                NUMBER, [*replies.values()]
            ),
            "mean": lambda: mean(plain, len(both)),
            "storing": lambda: combination.keep(delivery, change),
        }
        rows = {n: (seconds(s), extra_megabytes(s)) for n, s in steps.items() if n != "storing"}
        taken: list[float] = []
        held = extra_megabytes(lambda: taken.append(seconds(steps["storing"], repeats=1)))
        rows["storing"] = taken[0], held
        parts = [row for name, row in rows.items() if name[0] != " " and name not in PLAIN]
        rows["total"] = sum(time for time, _ in parts), max(held for _, held in parts)
    for name, (time, megabytes) in rows.items():
        times = f"{time * 1e3:>9.3f} {time / rows['mean'][0]:>6.2f}"
        print(f"{size:>10} {kind:<10} {name:<12} {times} {megabytes:>6.0f}")


def reply(arrays: ArrayRecord, random: np.random.Generator) -> Message:
    """Return what a client sends whose update is random."""
    trained = {
        name: Array(array.numpy() - random.standard_normal(array.shape, np.float32))
        for name, array in arrays.items()
    }
    metrics = MetricRecord({"num-examples": 1})
    content = RecordDict({"arrays": ArrayRecord(trained), "metrics": metrics})
    return Message(content, dst_node_id=1, message_type="train")


def mean(vectors: Sequence[np.ndarray], count: int) -> np.ndarray:
    """Return the mean of so many vectors, which are these over and over."""
    total, product = np.zeros_like(vectors[0]), np.empty_like(vectors[0])
    for place in range(count):
        np.multiply(vectors[place % len(vectors)], np.float32(1 / count), out=product)
        total += product
    return total


if __name__ == "__main__":
    main()
