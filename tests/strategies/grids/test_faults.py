"""Clients that hang, die, leave, come, or answer twice or late cost their place, and no more."""

import threading
import time

import numpy as np
import pytest
from apps import numpy_app
from flwr.app import Error, Message
from flwr.serverapp.strategy import FedAvg

from pncs_flower.clients import summary_mod
from pncs_flower.protocol import MARKER
from pncs_flower.simulations.run.in_process import InProcessGrid
from pncs_flower.strategies import PNCS, RoundRobin, TooFewClientsError
from pncs_flower.strategies.grids.view import GridWrapper

PHASES = {"summarize": "pre-round", "train": "training"}
CULPRIT = 1


def strategy_for(phase, **options):
    """Return one that asks all of four clients, or has all of them train."""
    base = FedAvg(fraction_evaluate=0.0)
    if phase == "summarize":
        return PNCS(base, num_selected=2, queue_length=0, ride_along=False, **options)
    return RoundRobin(base, num_selected=4, **options)


def start(strategy, grid, rounds=3, **options):
    models = []
    strategy.start(
        grid,
        numpy_app.initial_arrays(),
        num_rounds=rounds,
        evaluate_fn=lambda _, arrays: models.append(arrays),
        **options,
    )
    assert len(models) == rounds + 1
    for arrays in models:
        assert all(np.isfinite(array.numpy()).all() for array in arrays.values())
    return models


def is_for(message, phase, server_round, client=CULPRIT):
    marker = message.content.config_records.get(MARKER, {})
    return (
        marker.get("phase") == phase
        and marker["round"] == server_round
        and message.metadata.dst_node_id == 1000 + client
    )


def rejected(strategy):
    """Return what the records hold against clients: round, client and reason."""
    return [(r.round, who, why) for r in strategy.history for who, why in r.rejected.items()]


class Threads(GridWrapper):
    """Handles each message in a thread of its own, so that a client that hangs is waited for."""

    def send_and_receive(self, messages, *, timeout=None):
        replies = []
        threads = [
            threading.Thread(target=lambda m=m: replies.extend(self._ask(m)), daemon=True)
            for m in messages
        ]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + (60 if timeout is None else timeout)
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return list(replies)

    def _ask(self, message):
        return self.pull_messages(self.push_messages([message]))


@pytest.mark.parametrize("phase", PHASES)
def test_client_that_hangs_costs_the_time_limit_and_its_own_place(phase):
    ends = threading.Event()

    def hangs(message, context, call_next):
        if is_for(message, phase, 2):
            ends.wait(60)
        return call_next(message, context)

    grid = Threads(InProcessGrid(numpy_app.make_app(hangs, summary_mod), 4))
    strategy = strategy_for(phase, summary_timeout=1.0)
    begin = time.monotonic()
    try:
        start(strategy, grid, timeout=1.0)
    finally:
        ends.set()
    assert time.monotonic() - begin < 20
    ((number, client, why),) = rejected(strategy)
    assert (number, client) == (2, "1")
    assert why.startswith(f"{PHASES[phase]}: no reply")
    seconds = strategy.history[1].seconds[PHASES[phase]]
    assert 1.0 <= seconds < 10
    assert strategy.history[2].delivered


class Altered(InProcessGrid):
    """A grid on which a client's reply in round 2 is changed, and comes when it comes."""

    def __init__(self, phase, clients=4):
        super().__init__(numpy_app.make_app(summary_mod), clients)
        self.phase = phase

    def push_messages(self, messages):
        messages = list(messages)
        self.culprits = [m for m in messages if is_for(m, self.phase, 2)]
        return super().push_messages(messages)

    def send_and_receive(self, messages, *, timeout=None):
        replies = list(super().send_and_receive(messages, timeout=timeout))
        asked = {m.metadata.message_id for m in self.culprits}
        mine = [r for r in replies if r.metadata.reply_to_message_id in asked]
        return self.change([r for r in replies if r not in mine], mine)

    def change(self, others, mine):
        raise NotImplementedError


class Never(Altered):
    def change(self, others, mine):
        return others


class Late(Altered):
    """The reply comes first of all in the exchange after."""

    late = ()

    def change(self, others, mine):
        due, self.late = self.late, mine
        return [*due, *others]


class Twice(Altered):
    """The second answer is that of another client."""

    def change(self, others, mine):
        second = [Message(others[0].content, reply_to=m) for m in self.culprits]
        return [*mine, *others, *second]


class Gone(Altered):
    """What a SuperLink says of a node that it has lost, or of a client app that died."""

    reason = "Node Unavailable"

    def change(self, others, mine):
        lost = [Message(Error(5, self.reason), reply_to=m) for m in self.culprits]
        return [*others, *lost]


class Died(Gone):
    reason = "ClientApp stopped responding."


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize(
    ("kind", "reason"),
    [(Never, "no reply"), (Late, "no reply"), (Gone, Gone.reason), (Died, Died.reason)],
)
def test_reply_that_does_not_come_in_its_round_costs_the_client_that_round_alone(
    phase, kind, reason
):
    strategy = strategy_for(phase)
    start(strategy, kind(phase), rounds=4)
    ((number, client, why),) = rejected(strategy)
    assert (number, client) == (2, "1")
    assert why.startswith(f"{PHASES[phase]}: {reason}")
    record = strategy.history[1]
    assert record.delivered == [c for c in record.chosen if c != "1"]
    if phase == "train":
        assert record.delivered == ["0", "2", "3"]
        # Also in the next, since all four are needed.
        assert strategy.history[2].delivered == ["0", "1", "2", "3"]
    else:
        assert sorted(record.answered) == ["0", "2", "3"]
        assert strategy.history[2].backing_off == ["1"]  # one round behind the others
        assert sorted(strategy.history[2].answered) == ["0", "2", "3"]
        assert sorted(strategy.history[3].answered) == ["0", "1", "2", "3"]


@pytest.mark.parametrize("phase", PHASES)
def test_late_reply_changes_nothing(phase):
    """The weights are those of a run in which it never came."""
    never, late = (start(strategy_for(phase), kind(phase), rounds=4) for kind in (Never, Late))
    assert late == never


@pytest.mark.parametrize("phase", PHASES)
def test_second_answer_changes_nothing(phase):
    strategy = strategy_for(phase)
    twice = start(strategy, Twice(phase), rounds=4)
    once = start(strategy_for(phase), InProcessGrid(numpy_app.make_app(summary_mod), 4), rounds=4)
    assert twice == once
    assert not rejected(strategy)


class Roaming(InProcessGrid):
    """A grid whose client 1 leaves in the midst of round 2 and is back for round 4."""

    def __init__(self, phase, new_id):
        super().__init__(numpy_app.make_app(summary_mod), 4)
        self.phase, self.new_id, self.away = phase, new_id, None

    def push_messages(self, messages):
        messages = list(messages)
        if any(is_for(m, self.phase, 2) for m in messages) and self.away is None:
            self.away = self.contexts.pop(1000 + CULPRIT)
        return super().push_messages(messages)

    def come_back(self):
        self.away.node_id = self.new_id
        self.contexts[self.new_id] = self.away


@pytest.mark.parametrize("new_id", [1001, 2001])
@pytest.mark.parametrize("phase", PHASES)
def test_node_that_leaves_during_a_round_and_comes_back_is_the_same_client(phase, new_id):
    grid, base = Roaming(phase, new_id), FedAvg(fraction_evaluate=0.0)
    strategy = {
        "summarize": PNCS(base, queue_length=4, ride_along=False, wait_timeout=5),
        "train": RoundRobin(base, num_selected=3, wait_timeout=5, seed=1),
    }[phase]

    def look(number, arrays):
        assert all(np.isfinite(array.numpy()).all() for array in arrays.values())
        if number == 3:
            grid.come_back()

    begin = time.monotonic()
    strategy.start(grid, numpy_app.initial_arrays(), num_rounds=6, evaluate_fn=look)
    assert time.monotonic() - begin < 30
    clients = [record.clients for record in strategy.history]
    everybody, others = ["0", "1", "2", "3"], ["0", "2", "3"]
    assert clients == [everybody, everybody, others, everybody, everybody, everybody]
    assert [(r, c) for r, c, _ in rejected(strategy)] == [(2, "1")]
    assert all(record.delivered for record in strategy.history)
    assert any("1" in record.delivered for record in strategy.history[3:])


def test_nodes_that_join_are_met_once_and_take_part_from_then_on():
    grid = InProcessGrid(numpy_app.make_app(summary_mod), 6)
    for context in grid.contexts.values():  # a deployment does not say how many there will be
        del context.node_config["num-partitions"]
    waiting = {node_id: grid.contexts.pop(node_id) for node_id in (1004, 1005)}
    strategy = PNCS(FedAvg(fraction_evaluate=0.0), num_selected=2, queue_length=0)

    def look(number, arrays):
        if number == 2:
            grid.contexts.update(waiting)

    strategy.start(grid, numpy_app.initial_arrays(), num_rounds=4, evaluate_fn=look)
    assert [len(record.clients) for record in strategy.history] == [4, 4, 6, 6]
    assert [record.bytes_up["introduction"] > 0 for record in strategy.history] == [
        True,
        False,
        True,
        False,
    ]
    assert {"4", "5"} <= set(strategy.history[2].asked) & set(strategy.history[3].answered)


def test_fewer_clients_than_are_selected_stop_a_run_in_bounded_time(tmp_path):
    """The rounds before are kept, and the run goes on once there are clients enough."""

    def strategy():
        return RoundRobin(
            FedAvg(fraction_evaluate=0.0), num_selected=3, wait_timeout=0.5, checkpoint=tmp_path
        )

    grid = InProcessGrid(numpy_app.make_app(summary_mod), 4)
    gone = {}

    def look(number, arrays):
        if number == 2:
            gone.update({node_id: grid.contexts.pop(node_id) for node_id in (1000, 1003)})

    begin = time.monotonic()
    with pytest.raises(TooFewClientsError, match="2 clients take part, but num_selected is 3"):
        strategy().start(grid, numpy_app.initial_arrays(), num_rounds=4, evaluate_fn=look)
    assert time.monotonic() - begin < 10
    grid.contexts.update(gone)
    resumed = strategy()
    resumed.start(grid, numpy_app.initial_arrays(), num_rounds=4)
    assert [record.round for record in resumed.history] == [1, 2, 3, 4]
    assert all(len(record.delivered) == 3 for record in resumed.history)


class Emptying(InProcessGrid):
    """A grid that two clients leave just before some push."""

    def __init__(self, push):
        super().__init__(numpy_app.make_app(summary_mod), 6)
        self.pushes, self.push = 0, push

    def push_messages(self, messages):
        self.pushes += 1
        if self.pushes == self.push:
            for client in (0, 3):
                del self.contexts[1000 + client]
        return super().push_messages(messages)


@pytest.mark.parametrize("ride_along", [True, False])
@pytest.mark.parametrize("push", [2, 3, 4, 5])
def test_several_nodes_that_leave_at_once_are_left_out(push, ride_along):
    base = FedAvg(fraction_evaluate=0.0)
    strategy = PNCS(base, num_selected=2, ride_along=ride_along, wait_timeout=0.3)
    start(strategy, Emptying(push), rounds=4)
    assert strategy.history[-1].clients == ["1", "2", "4", "5"]
    assert all(record.delivered for record in strategy.history)
