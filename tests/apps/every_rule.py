"""Every rule on the NumPy app in one process, and a digest of what each has decided.

Some clients fail, and losses and sizes are numbers whose sums depend on their order.
"""

import hashlib
import json
import random
import time
from collections.abc import Iterable
from typing import Any

import numpy as np
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from rounds import make_round

from apps import numpy_app
from pncs_flower.clients import SummaryMod
from pncs_flower.simulations.run.in_process import InProcessGrid
from pncs_flower.strategies import (
    PNCS,
    ActiveFL,
    DivFL,
    FedCor,
    GradientMemory,
    GradientNorm,
    Oort,
    PowerOfChoice,
    ProportionalSelection,
    RoundRobin,
    SelectionStrategy,
    SketchedMean,
    UniformSelection,
)
from pncs_flower.strategies.resume.snapshot import Encoder

CLIENTS, ROUNDS = 9, 7
STRATEGIES = {
    "PNCS": PNCS,
    "PNCS, by its own rest": lambda base, **o: PNCS(base, **{**o, "queue_length": None}),
    "PNCS, some asked": lambda base, **o: PNCS(base, candidates=4, **o),
    "PNCS, per layer": lambda base, **o: PNCS(base, per_layer=True, **o),
    "GradientMemory": GradientMemory,
    "GradientMemory, some asked": lambda base, **o: GradientMemory(base, candidates=4, **o),
    "DivFL": DivFL,
    "DivFL, stochastic": lambda base, **o: DivFL(base, stochastic=True, **o),
    "DivFL, stale": lambda base, **o: DivFL(base, stale=True, **o),
    "GradientNorm": GradientNorm,
    "pow-d": lambda base, **o: PowerOfChoice(base, candidates=6, **o),
    "cpow-d": lambda base, **o: PowerOfChoice(base, candidates=6, variant="cpow-d", **o),
    "rpow-d": lambda base, **o: PowerOfChoice(base, candidates=9, variant="rpow-d", **o),
    "FedCor": lambda base, **o: FedCor(base, schedule="short", **o),
    "ActiveFL": lambda base, **o: ActiveFL(base, uniform_share=0.5, **o),
    "Oort": lambda base, **o: Oort(base, explored_share=0.5, **o),
    "Uniform": UniformSelection,
    "Proportional": ProportionalSelection,
    "RoundRobin": RoundRobin,
    "SketchedMean": SketchedMean,
    "SketchedMean, some asked": lambda base, **o: SketchedMean(base, candidates=4, **o),
    "PNCS, sketched mean": lambda base, **o: PNCS(base, combine="sketched-mean:store=5", **o),
    "RoundRobin, FedVARP": lambda base, **o: RoundRobin(base, combine="fedvarp", **o),
    "Oort, FedStale": lambda base, **o: Oort(base, combine="surrogates:0.5,dtype=float16", **o),
    "Proportional, FedVARP": lambda base, **o: ProportionalSelection(base, combine="fedvarp", **o),
    "Uniform, MIFA": lambda base, **o: UniformSelection(base, combine="mifa:6", **o),
}


def _train(message: Message, context: Context) -> Message:
    client = int(context.node_config["partition-id"])
    number = int(str(message.content["config"]["server-round"]))
    rng = np.random.default_rng([client, number])
    if rng.random() < 0.15:
        raise OSError("no data")
    time.sleep(random.random() / 500)  # so that any worker may be the first
    reply = numpy_app.train(message, context)
    reply.content["metrics"]["train-loss"] = float(rng.random())
    return reply


class ShuffledGrid(InProcessGrid):
    """A grid whose replies come in any order."""

    def send_and_receive(self, messages: Iterable[Message], **options: Any) -> list[Message]:
        replies = list(super().send_and_receive(messages, **options))
        random.shuffle(replies)
        return replies


def digest(strategy: SelectionStrategy, workers: int = 1) -> str:
    """Run a strategy, and return a digest of its choices, its state and the model."""
    app = ClientApp(
        mods=[SummaryMod(num_examples=lambda c: 1 + int(c.node_config["partition-id"]))]
    )
    app.train()(_train)
    app.evaluate()(numpy_app.evaluate)
    seen = []
    see = type(strategy.rule).select

    def select(rule, state, now, summaries):
        seen.append(repr((now.available, now.clients, list(summaries))))
        choice = see(rule, state, now, summaries)
        seen.append(repr((choice.clients, choice.mean_similarity)))
        return choice

    type(strategy.rule).select = select
    try:
        with ShuffledGrid(app, CLIENTS, workers=workers) as grid:
            result = strategy.start(grid, numpy_app.initial_arrays(), num_rounds=ROUNDS)
    finally:
        type(strategy.rule).select = see
    encoder = Encoder()
    state = json.dumps(encoder.encode(strategy.state(), "the state"))
    told = [*seen, state, *(repr((r.chosen, r.rejected)) for r in strategy.history)]
    bits = [
        a.tobytes()
        for a in (*encoder.arrays.values(), *(v.numpy() for v in result.arrays.values()))
    ]
    return hashlib.sha256(b"".join([*(text.encode() for text in told), *bits])).hexdigest()


def make(name: str) -> SelectionStrategy:
    base = FedAvg(fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=1)
    return STRATEGIES[name](base, num_selected=2, queue_length=2, seed=5)


def digests() -> dict[str, str]:
    """Return the digest of every rule, by name."""
    return {name: digest(make(name)) for name in STRATEGIES}


def usual_loss() -> float:
    """Return the loss that rpow-d takes a client to have that was chosen, but never reported."""
    clients = [f"hospital-{k}" for k in range(12)]
    losses = {client: 0.1 * (k + 1) / 3 for k, client in enumerate(clients[1:])}
    seen: list[float] = []

    class Seen(dict):
        def get(self, key, default=None):
            if key not in self:
                seen.append(default)
            return super().get(key, default)

    rule = PowerOfChoice(FedAvg(), num_selected=2, candidates=12, variant="rpow-d").rule
    now = make_round(3, clients, 2, last_rounds=dict.fromkeys(clients, 1))
    rule.select({"losses": Seen(losses)}, now, {})
    return seen[0]
