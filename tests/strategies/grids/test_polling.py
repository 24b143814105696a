"""Replies are looked for often, never longer than the timeout, and only on Flower's own grid."""

import time
from importlib import import_module
from importlib.util import find_spec
from itertools import chain
from unittest.mock import MagicMock

import pytest
from apps import numpy_app
from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg

from pncs_flower.clients import summary_mod
from pncs_flower.simulations.run.in_process import InProcessGrid
from pncs_flower.strategies import PNCS, RoundRobin
from pncs_flower.strategies.grids import polling
from pncs_flower.strategies.grids.polling import PollingGrid, polled


class Slow(InProcessGrid):
    """Replies of client i are there (i + 1) times `delay` seconds after the push."""

    delay = 0.1
    refused: int | None = None  # place of a message that is not accepted

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self._due, self.pushed = {}, []

    def push_messages(self, messages):
        messages = list(messages)
        ids = super().push_messages(messages)
        now = time.monotonic()
        self.pushed.append([message.metadata.dst_node_id for message in messages])
        self._due |= {
            i: now + self.delay * (message.metadata.dst_node_id - 999)
            for i, message in zip(ids, messages, strict=True)
        }
        return [None if place == self.refused else id for place, id in enumerate(ids)]

    def pull_messages(self, message_ids):
        now = time.monotonic()
        return super().pull_messages([i for i in message_ids if self._due[i] <= now])


def messages(grid):
    return [Message(RecordDict(), node, MessageType.TRAIN) for node in grid.get_node_ids()]


def timed(grid, timeout):
    start = time.monotonic()
    replies = PollingGrid(grid).send_and_receive(messages(grid), timeout=timeout)
    return len(replies), time.monotonic() - start


def test_all_replies_are_there_soon_after_the_last():
    count, seconds = timed(Slow(numpy_app.make_app(), 4), timeout=None)
    assert count == 4
    assert 0.4 <= seconds < 1.4  # Flower's own grid would have taken 3 seconds


def test_time_limit_is_kept_and_what_came_by_then_is_returned():
    grid = Slow(numpy_app.make_app(), 2)
    grid.delay = 0.35
    count, seconds = timed(grid, timeout=0.5)
    assert count == 1
    assert 0.5 <= seconds < 1.5


def test_message_that_was_not_accepted_is_not_waited_for():
    grid = Slow(numpy_app.make_app(), 2)
    grid.refused = 1
    count, seconds = timed(grid, timeout=30)
    assert count == 1
    assert seconds < 10


def test_pauses_grow_with_the_time_waited_up_to_those_of_flower(monkeypatch):
    grid = Slow(numpy_app.make_app(), 1)
    grid.delay, pauses, clock = 200, [], [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])

    def sleep(seconds):
        pauses.append(seconds)
        clock[0] += seconds

    monkeypatch.setattr(time, "sleep", sleep)
    assert len(PollingGrid(grid).send_and_receive(messages(grid))) == 1
    assert pauses[0] == 0.201
    assert max(pauses) == 3
    assert 200 <= clock[0] <= 200 * 1.05


def exchange_two_each(clients, delay):
    """Send two messages to each client; return the grid and the replies."""
    grid = Slow(numpy_app.make_app(), clients)
    grid.delay = delay
    both = [*messages(grid), *messages(grid)]
    replies = PollingGrid(grid, simulated=True).send_and_receive(both)
    assert {r.metadata.reply_to_message_id for r in replies} == {
        m.metadata.message_id for m in both
    }
    return grid


def test_few_messages_are_pushed_at_once():
    grid = exchange_two_each(22, delay=0.001)
    assert grid.pushed == [2 * list(grid.get_node_ids())]


def test_of_many_messages_few_are_open_and_one_to_each_client(monkeypatch):
    opened = []

    class Counting(Slow):
        def pull_messages(self, message_ids):
            ids = list(message_ids)
            opened.append([self.node_of[i] for i in ids])
            return super().pull_messages(ids)

        def push_messages(self, messages):
            messages = list(messages)
            ids = super().push_messages(messages)
            self.node_of = getattr(self, "node_of", {}) | {
                i: m.metadata.dst_node_id for i, m in zip(ids, messages, strict=True)
            }
            return ids

    monkeypatch.setattr(polling, "_WINDOW", 24)
    monkeypatch.setitem(globals(), "Slow", Counting)
    grid = exchange_two_each(60, delay=0.001)
    assert max(len(nodes) for nodes in opened) == 24
    assert all(len(set(nodes)) == len(nodes) for nodes in opened)
    assert sorted(chain.from_iterable(grid.pushed)) == sorted(2 * list(grid.get_node_ids()))


def test_more_are_open_when_none_is_answered(monkeypatch):
    monkeypatch.setattr(polling, "_WINDOW", 24)
    grid = Slow(numpy_app.make_app(), 70)
    grid.delay = 50
    PollingGrid(grid, simulated=True).send_and_receive(messages(grid), timeout=1.8)
    assert [len(nodes) for nodes in grid.pushed if nodes] == [24, 24, 22]


def test_messages_that_never_were_pushed_have_an_id_when_the_time_is_up():
    grid = Slow(numpy_app.make_app(), 30)
    grid.delay = 50
    both = [*messages(grid), *messages(grid)]
    replies = PollingGrid(grid, simulated=True).send_and_receive(both, timeout=0.3)
    assert replies == []
    assert len({m.metadata.message_id for m in both} - {""}) == 60


def test_a_simulations_engine_checks_messages_only_for_the_clients_that_they_are_for():
    class State:
        """As Flower's, where a message stays until its reply is fetched."""

        def __init__(self):
            given = [Message(RecordDict(), node, MessageType.TRAIN) for node in (1, 2, 2)]
            self.message_ins_store = dict(enumerate(given))
            self.looked: list[int] = []

        def get_message_ins(self, node_id: int, limit: int | None = None, *, run_id=None):
            self.looked.append(node_id)
            for message in self.message_ins_store.values():
                if message.metadata.dst_node_id == node_id and not message.metadata.delivered_at:
                    message.metadata.delivered_at = "now"
                    return [message]
            return []

    place = "flwr.superlink" if find_spec("flwr.superlink.grid") else "flwr.server"
    InProcessGrid(numpy_app.make_app(), 1)  # or no message could be made
    factory = MagicMock()
    factory.state.return_value = state = State()
    grid = import_module(f"{place}.grid.inmemory_grid").InMemoryGrid(factory)
    polled(polled(grid))
    polled(grid)
    for _ in range(3):
        for node_id in range(5):
            state.get_message_ins(node_id=node_id, limit=1)
    assert state.looked == [1, 2, 2]  # once each, not once for each call of `polled`
    assert all(message.metadata.delivered_at for message in state.message_ins_store.values())


def test_flowers_grid_to_a_superlink_is_wrapped():
    http_grid = pytest.importorskip(
        "flwr.superlink.grid.http_grid", reason="Flower has this grid since 1.35"
    )
    grid = polled(http_grid.HttpGrid(token="t", insecure=True))
    assert isinstance(grid, PollingGrid)
    assert not grid.simulated


def test_flowers_grid_of_a_simulation_is_wrapped_and_no_others():
    place = "flwr.superlink" if find_spec("flwr.superlink.grid") else "flwr.server"
    in_memory = import_module(f"{place}.grid.inmemory_grid").InMemoryGrid(MagicMock())
    simulation = polled(in_memory)
    assert isinstance(simulation, PollingGrid)
    assert simulation.simulated
    grid = InProcessGrid(numpy_app.make_app(), 1)
    assert polled(grid) is grid
    wrapped = PollingGrid(grid)
    assert polled(wrapped) is wrapped


class Watching(InProcessGrid):
    """Notes how long the messages live."""

    def send_and_receive(self, messages, *, timeout=None):
        messages = list(messages)
        self.lives = {*getattr(self, "lives", ()), *(round(m.metadata.ttl) for m in messages)}
        return super().send_and_receive(messages, timeout=timeout)


@pytest.mark.parametrize("kind", [PNCS, RoundRobin])
def test_messages_expire_with_the_timeout(kind):
    strategy = kind(FedAvg(), seed=1, wait_timeout=40, start_timeout=40, summary_timeout=40)
    grid = Watching(numpy_app.make_app(summary_mod), 4)
    strategy.start(grid, numpy_app.initial_arrays(), num_rounds=2, timeout=50)
    assert grid.lives == {40, 50}


def test_timeout_of_a_wrappers_loop_is_not_cut_short():
    inner = RoundRobin(FedAvg(), seed=1, wait_timeout=40, start_timeout=40)
    outer = DifferentialPrivacyServerSideFixedClipping(inner, 0.1, 1.0, num_sampled_clients=2)
    grid = Watching(numpy_app.make_app(summary_mod), 4)
    outer.start(grid, numpy_app.initial_arrays(), num_rounds=1, timeout=5000)
    assert grid.lives == {40, 43200}
