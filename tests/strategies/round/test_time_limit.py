"""A round's training has one time limit, also for clients that are asked twice."""

import time

import pytest
from apps import numpy_app
from flwr.serverapp.strategy import FedAvg

from pncs_flower.clients import summary_mod
from pncs_flower.clients.kept import drop_kept
from pncs_flower.protocol import MARKER
from pncs_flower.simulations.run.in_process import InProcessGrid
from pncs_flower.strategies import PNCS

TIMEOUT = 5.0


class Clocked(InProcessGrid):
    """Notes the time limits of training, and lets the first exchange of it take a while."""

    def __init__(self, app, seconds):
        super().__init__(app, 4)
        self._seconds = seconds
        self.limits = []

    def send_and_receive(self, messages, *, timeout=None):
        messages = list(messages)
        training = [m for m in messages if m.content.config_records.get(MARKER, {}).get("phase")]
        training = [m for m in training if m.content[MARKER]["phase"] == "train"]
        if training:
            self.limits.append((timeout, max(m.metadata.ttl for m in training), time.monotonic()))
            if len(self.limits) % 2:
                Clocked.now += self._seconds
        return super().send_and_receive(messages, timeout=timeout)


def forgets(message, context, call_next):
    if message.content.config_records.get(MARKER, {}).get("phase") == "train":
        drop_kept(context.state)
    return call_next(message, context)


@pytest.fixture
def clock(monkeypatch):
    Clocked.now = 0.0
    real = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: real() + Clocked.now)


def run(seconds):
    grid = Clocked(numpy_app.make_app(forgets, summary_mod), seconds)
    strategy = PNCS(FedAvg(fraction_evaluate=0.0), num_selected=2, max_empty_rounds=9)
    strategy.start(grid, numpy_app.initial_arrays(), num_rounds=1, timeout=TIMEOUT)
    return grid, strategy.history[0]


def test_clients_that_are_asked_again_have_what_is_left_of_the_time(clock):
    grid, record = run(seconds=3.0)
    (first, first_life, _), (again, again_life, _) = grid.limits
    assert first == first_life == TIMEOUT
    assert 1.0 < again <= 2.0
    assert 1.0 < again_life <= 2.0
    assert len(record.delivered) == 2
    assert any("trained again" in note for note in record.notes)


def test_nobody_is_asked_again_when_the_time_is_up(clock):
    grid, record = run(seconds=6.0)
    assert len(grid.limits) == 1
    assert not record.delivered
    assert any("had lost the update when the time was up" in note for note in record.notes)
