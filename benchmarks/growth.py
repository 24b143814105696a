"""What the server of a simulation takes as clients and rounds grow: time, memory and files.

Rounds of PNCS whose clients answer from memory without computing. What they take is not counted:
what is left is the server's, the pre-round, the choice, the records and the aggregation. Each row
is a process of its own, in which the run saves nothing, or, with files, a line for each round and
a checkpoint after it. Times are processor times, of which other programs take no part: the median
of up to 50 rounds. The memory is the process's own beyond what it had before it made its grid; a
client more is the difference between two rows, at a round in which few have ever been asked.

Examples
--------
python benchmarks/growth.py
python benchmarks/growth.py --clients 10000
python benchmarks/growth.py --clients 200 10000 --rounds 20
"""

import argparse
import logging
import statistics
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from measure import machine, own_megabytes

from pncs_flower.clients import SummaryMod
from pncs_flower.simulations.run.in_process import InProcessGrid
from pncs_flower.strategies import PNCS

VALUES, MEDIAN_OF = 1000, 50


class Mark(NamedTuple):
    """What was measured at a round."""

    milliseconds: float  # of the server in a round
    megabytes: float
    on_disk: float  # megabytes


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, nargs="+", default=[200, 1000, 10_000])
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--asked", type=int, default=100)
    parser.add_argument("--chosen", type=int, default=20)
    options = parser.parse_args(arguments)
    marks = sorted({max(2, options.rounds // part) for part in (100, 10, 1)})
    print(f"{machine()}\n{options.asked} asked, {options.chosen} chosen\n")
    print(f"{'':>16}" + "".join(f"{f'round {mark}':>13}{'':>12}" for mark in marks))
    print(f"{'clients':>8} {'saved':>7}" + f"{'ms':>9}{'MB':>8}{'disk MB':>8}" * len(marks))
    for saves in (False, True):
        rows = {}
        for clients in options.clients:
            work = (clients, options.asked, options.chosen, marks, saves)
            with ProcessPoolExecutor(1, get_context("spawn")) as pool:
                rows[clients] = pool.submit(measure, *work).result()
            cells = "".join(
                f"{m.milliseconds:>9.1f}{m.megabytes:>8.1f}{m.on_disk:>8.2f}" for m in rows[clients]
            )
            print(f"{clients:>8} {'files' if saves else '-':>7}{cells}", flush=True)
        few, many = min(rows), max(rows)
        if many > few:
            more = (rows[many][0].megabytes - rows[few][0].megabytes) * 2**20 / (many - few)
            print(f"a client more at round {marks[0]}: {more:.0f} bytes\n", flush=True)


def measure(clients: int, asked: int, chosen: int, marks: list[int], saves: bool) -> list[Mark]:
    """Run the rounds, and return what there is at some of them."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    values = np.random.default_rng(0).normal(size=VALUES + clients).astype(np.float32)

    def answer(message: Message, context: Context) -> ArrayRecord:
        first = int(context.node_config["partition-id"])
        return ArrayRecord({"fc.weight": Array(values[first : first + VALUES])})

    app = ClientApp(mods=[SummaryMod(gradient=answer)])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        metrics = MetricRecord({"num-examples": 32, "train-loss": 1.0})
        content = RecordDict({"arrays": answer(message, context), "metrics": metrics})
        return Message(content, reply_to=message)

    before = own_megabytes()
    grid = TimedGrid(app, clients)
    times: list[float] = []
    found: list[Mark] = []
    last = [0.0, 0.0]

    def after(number: int, arrays: ArrayRecord) -> MetricRecord:
        times.append(time.process_time() - last[0] - (grid.inside - last[1]))
        if number in marks:
            on_disk = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
            median = statistics.median(times[max(2, number + 1 - MEDIAN_OF) :])
            found.append(Mark(median * 1e3, own_megabytes() - before, on_disk / 1e6))
        last[:] = time.process_time(), grid.inside
        return MetricRecord({"accuracy": 0.0})

    with tempfile.TemporaryDirectory(prefix="pncs-") as name:
        folder = Path(name)
        saved: dict[str, Any] = {}
        if saves:
            saved = {"history_path": folder / "rounds.jsonl", "checkpoint": folder / "checkpoint"}
        strategy = PNCS(
            FedAvg(fraction_evaluate=0.0),
            num_selected=chosen,
            queue_length=4,
            candidates=asked,
            summary="gradient",
            sketch="coordinates:100",
            **saved,
        )
        initial = ArrayRecord({"fc.weight": Array(np.zeros(VALUES, np.float32))})
        strategy.start(grid, initial, num_rounds=max(marks), evaluate_fn=after)
    return found


class TimedGrid(InProcessGrid):
    """Counts the seconds that clients take, which are not the server's."""

    inside = 0.0

    def _handle(self, message: Message) -> Message:
        start = time.process_time()
        reply = super()._handle(message)
        self.inside += time.process_time() - start
        return reply


if __name__ == "__main__":
    main()
