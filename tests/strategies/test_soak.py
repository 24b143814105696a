"""Long runs with faults: no lost round, flat memory, no honest client left out.

Short here; ``make soak`` runs them in full.
"""

import logging
import os
import random
import tracemalloc

import pytest
from apps import faulty_app, numpy_app
from flwr.serverapp.strategy import FedAvg

from pncs_flower.clients import summary_mod
from pncs_flower.simulations.run.in_process import InProcessGrid
from pncs_flower.strategies import PNCS, GradientMemory

ROUNDS = int(os.environ.get("PNCS_SOAK_ROUNDS", "60"))
HONEST_ROUNDS = int(os.environ.get("PNCS_HONEST_ROUNDS", "50"))
CLIENTS = int(os.environ.get("PNCS_SOAK_CLIENTS", "30"))
MANY = int(os.environ.get("PNCS_SOAK_MANY", "500"))  # clients
STATM = "/proc/self/statm"


class Silent(InProcessGrid):
    """A grid on which half of the error replies never come."""

    def __init__(self, clients: int) -> None:
        super().__init__(faulty_app.make_app(), clients)
        self.dice = random.Random(1)

    def pull_messages(self, message_ids):
        replies = super().pull_messages(message_ids)
        return [r for r in replies if not r.has_error() or self.dice.random() < 0.5]


def resident_megabytes() -> float:
    with open(STATM, encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


@pytest.mark.minutes
@pytest.mark.skipif(not os.path.exists(STATM), reason="reads memory from /proc")
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", [PNCS, GradientMemory])
def test_a_long_run_with_faults_loses_no_round_and_keeps_its_memory(kind, monkeypatch):
    # pytest keeps every record that is logged, which would be what grows.
    monkeypatch.setattr(logging.getLogger("flwr"), "disabled", True)
    # Nobody rests, so that many are asked and many fail.
    strategy = kind(
        FedAvg(fraction_evaluate=0.0), num_selected=4, queue_length=0, sketch="layers", seed=2
    )
    grid = Silent(CLIENTS)
    memory = {}

    def measure(server_round, arrays):
        if server_round in (ROUNDS // 4, ROUNDS):
            memory[server_round] = resident_megabytes()

    strategy.start(grid, faulty_app.initial_arrays(), num_rounds=ROUNDS, evaluate_fn=measure)
    assert [record.round for record in strategy.history] == list(range(1, ROUNDS + 1))
    assert all(record.delivered for record in strategy.history)
    reasons = [why for record in strategy.history for why in record.rejected.values()]
    assert len(reasons) > ROUNDS
    for fault in ("no data", "no reply", "not finite", "shape"):
        assert any(fault in why for why in reasons), fault
    # The history itself takes some 5 kB a round at 40 clients.
    growth = memory[ROUNDS] - memory[ROUNDS // 4]
    history = 2e-4 * CLIENTS * ROUNDS
    assert growth < 5 + history, f"{growth:.1f} MB more in {ROUNDS * 3 // 4} rounds"


def traced_bytes(clients: int) -> int:
    """What is in memory after two rounds, in which few are asked."""
    strategy = PNCS(FedAvg(fraction_evaluate=0.0), num_selected=2, candidates=4)
    tracemalloc.start()
    try:
        grid = InProcessGrid(numpy_app.make_app(summary_mod), clients)
        strategy.start(grid, numpy_app.initial_arrays(), num_rounds=2)
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


def test_a_client_that_was_never_asked_takes_little_memory(monkeypatch):
    monkeypatch.setattr(logging.getLogger("flwr"), "disabled", True)
    traced_bytes(20)  # what is loaded and drawn once is not a client's
    of_a_client = (traced_bytes(50 + MANY) - traced_bytes(50)) / MANY
    assert of_a_client < 1300, f"{of_a_client:.0f} bytes a client"


@pytest.mark.minutes
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("sketch", ["count:6@float16", "count:6@int8", "layers@int8"])
def test_an_honest_client_is_never_taken_for_a_liar(sketch):
    strategy = GradientMemory(
        FedAvg(fraction_evaluate=0.0), num_selected=3, sketch=sketch, verify_sketches=True
    )
    grid = InProcessGrid(numpy_app.make_app(summary_mod), 8)
    strategy.start(grid, numpy_app.initial_arrays(), num_rounds=HONEST_ROUNDS)
    assert all(not record.rejected for record in strategy.history)
    assert {client for record in strategy.history for client in record.chosen} == {
        str(k) for k in range(8)
    }
