"""Every wait for clients is bounded, and a client keeps its key."""

import time

import pytest
from apps import numpy_app
from coming_and_going import Grid
from flwr.serverapp.strategy import FedAvg

from pncs_flower.clients import summary_mod
from pncs_flower.protocol import MARKER
from pncs_flower.simulations.run.in_process import InProcessGrid
from pncs_flower.strategies import (
    PNCS,
    SelectionError,
    SelectionOptions,
    TooFewClientsError,
    timeouts,
)
from pncs_flower.strategies.record import RoundRecord
from pncs_flower.strategies.round.roster import Roster
from pncs_flower.strategies.round.waiting import Waiting


class LateGrid(InProcessGrid):
    """Shows the first ``at_once`` nodes, and one more each time it is asked."""

    def __init__(self, clients: int, at_once: int) -> None:
        super().__init__(numpy_app.make_app(summary_mod), clients)
        self.visible = at_once

    def get_node_ids(self):
        self.visible += 1
        return list(super().get_node_ids())[: self.visible - 1]


def roster(min_clients=None, wait_timeout=5.0, eligible=None) -> Roster:
    return Roster(
        SelectionOptions(min_clients=min_clients, wait_timeout=wait_timeout, eligible=eligible)
    )


def wait(who: Roster, grid, num_selected: int, record: RoundRecord, **more) -> dict[str, int]:
    return Waiting(who, grid, record, num_selected, **more).clients()


def rename(grid: InProcessGrid, index: int, **node_config) -> None:
    context = list(grid.contexts.values())[index]
    context.node_config.clear()
    context.node_config.update({name.replace("_", "-"): v for name, v in node_config.items()})


def test_waits_for_all_simulated_clients_though_none_is_there_at_first():
    record = RoundRecord(1)
    clients = wait(roster(), LateGrid(6, at_once=0), 2, record)
    assert list(clients) == record.clients == ["0", "1", "2", "3", "4", "5"]


def test_waits_for_min_clients():
    grid = LateGrid(6, at_once=1)
    for index in range(6):
        rename(grid, index, name=f"site-{index}")
    assert len(wait(roster(min_clients=4), grid, 2, RoundRecord(1))) == 4


def test_wait_is_bounded_and_the_record_says_that_some_are_missing():
    grid = InProcessGrid(numpy_app.make_app(summary_mod), 3)
    record = RoundRecord(1)
    start = time.monotonic()
    for index in range(3):  # nobody says how many there are
        rename(grid, index, name=f"site-{index}")
    assert len(wait(roster(min_clients=5, wait_timeout=0.4), grid, 2, record)) == 3
    assert time.monotonic() - start < 3
    assert "started with 3 of 5 clients" in record.notes[0]


def test_later_rounds_do_not_wait_for_a_client_that_has_left():
    grid = InProcessGrid(numpy_app.make_app(summary_mod), 3)
    who = roster(wait_timeout=30.0)
    wait(who, grid, 2, RoundRecord(1))
    grid.contexts.popitem()
    start = time.monotonic()
    assert list(wait(who, grid, 2, RoundRecord(2))) == ["0", "1"]
    assert time.monotonic() - start < 3


def test_too_few_clients_is_an_error_that_names_both_numbers():
    grid = InProcessGrid(numpy_app.make_app(summary_mod), 2)
    with pytest.raises(TooFewClientsError, match="2 clients take part, but num_selected is 3"):
        wait(roster(wait_timeout=0.2), grid, 3, RoundRecord(1))


def test_more_clients_than_there_are_partitions_are_not_waited_for():
    grid = InProcessGrid(numpy_app.make_app(summary_mod), 2)
    start = time.monotonic()
    with pytest.raises(TooFewClientsError, match="2 clients take part, but num_selected is 3"):
        wait(roster(wait_timeout=30.0), grid, 3, RoundRecord(1))
    assert time.monotonic() - start < 3


def test_no_client_at_all_is_an_error_in_bounded_time():
    grid = InProcessGrid(numpy_app.make_app(summary_mod), 0)
    with pytest.raises(TooFewClientsError, match="0 clients"):
        wait(roster(wait_timeout=0.2), grid, 1, RoundRecord(1))


def test_key_is_partition_id_else_name_else_node_id():
    grid = InProcessGrid(numpy_app.make_app(summary_mod), 3)
    rename(grid, 0, partition_id=7, name="site-a")
    rename(grid, 1, name="site-b")
    rename(grid, 2)
    node_ids = list(grid.contexts)
    clients = wait(roster(), grid, 1, RoundRecord(1))
    assert clients == {"7": node_ids[0], str(node_ids[2]): node_ids[2], "site-b": node_ids[1]}


def test_keys_are_in_order_of_number():
    grid = InProcessGrid(numpy_app.make_app(summary_mod), 12)
    assert list(wait(roster(), grid, 1, RoundRecord(1))) == [str(k) for k in range(12)]


def test_second_client_with_a_taken_key_is_left_out_with_a_reason():
    grid = InProcessGrid(numpy_app.make_app(summary_mod), 3)
    rename(grid, 2, partition_id=0)
    record = RoundRecord(1)
    clients = wait(roster(), grid, 2, record)
    node_ids = list(grid.contexts)
    assert clients == {"0": node_ids[0], "1": node_ids[1]}
    assert "its key '0' is that of node" in record.rejected[f"node {node_ids[2]}"]


def test_client_that_comes_back_under_a_new_node_id_keeps_its_key():
    grid = InProcessGrid(numpy_app.make_app(summary_mod), 2)
    who = roster()
    wait(who, grid, 1, RoundRecord(1))
    node_id, context = grid.contexts.popitem()
    context.node_id = node_id + 50
    grid.contexts[node_id + 50] = context
    assert wait(who, grid, 1, RoundRecord(2))["1"] == node_id + 50


def test_only_eligible_clients_take_part():
    grid = InProcessGrid(numpy_app.make_app(summary_mod), 6)
    who = roster(wait_timeout=30.0, eligible=lambda key: key in {"1", "4"})
    start = time.monotonic()
    assert list(wait(who, grid, 2, RoundRecord(1))) == ["1", "4"]
    assert time.monotonic() - start < 3


def test_app_without_the_mod_is_an_error_that_names_the_line():
    grid = InProcessGrid(numpy_app.make_app(), 2)
    with pytest.raises(SelectionError, match=r"mods=\[summary_mod, \.\.\.\]"):
        wait(roster(wait_timeout=0.2), grid, 1, RoundRecord(1))


def test_one_broken_client_is_named_and_the_others_take_part():
    def broken(message, context, call_next):
        if context.node_config["partition-id"] == 0:
            raise RuntimeError("disk full")
        return call_next(message, context)

    grid = InProcessGrid(numpy_app.make_app(broken, summary_mod), 3)
    record = RoundRecord(1)
    assert list(wait(roster(), grid, 2, record)) == ["1", "2"]
    assert "disk full" in record.rejected[f"node {next(iter(grid.contexts))}"]


def unnamed(grid: InProcessGrid) -> InProcessGrid:
    """Let nobody say how many clients there are, as in a deployment."""
    grid.simulated = False
    for index in range(len(grid.contexts)):
        rename(grid, index, name=f"site-{index}")
    return grid


class Introductions:
    """A mod that lets some clients fail, and counts how often each was asked who it is."""

    def __init__(self, *failing: str, times: int = 10**9) -> None:
        self.failing, self.times = failing, times
        self.counts: dict[str, int] = {}

    def __call__(self, message, context, call_next):
        name = str(context.node_config["name"])
        if MARKER in message.content.config_records:
            self.counts[name] = self.counts.get(name, 0) + 1
            if name in self.failing and self.counts[name] <= self.times:
                raise RuntimeError("not ready")
        return call_next(message, context)


def test_nodes_that_cannot_be_used_do_not_end_the_wait_for_others(caplog):
    class Late(InProcessGrid):
        start = time.monotonic()

        def get_node_ids(self):
            late = time.monotonic() - self.start > 1
            return list(super().get_node_ids())[: None if late else 2]

    mod = Introductions("site-0", "site-1")
    grid = unnamed(Late(numpy_app.make_app(mod, summary_mod), 4))
    assert list(wait(roster(), grid, 2, RoundRecord(1))) == ["site-2", "site-3"]
    told = [r.getMessage() for r in caplog.records if "takes no part" in r.getMessage()]
    assert len(told) == 2
    assert "not ready" in told[0]


def test_a_client_that_fails_once_is_asked_again_while_it_is_needed(monkeypatch):
    monkeypatch.setattr(timeouts, "RETRY", 0.1)
    mod = Introductions("site-0", times=1)
    grid = unnamed(InProcessGrid(numpy_app.make_app(mod, summary_mod), 2))
    assert list(wait(roster(), grid, 2, RoundRecord(1))) == ["site-0", "site-1"]


def test_a_node_that_always_fails_is_asked_less_and_less():
    mod = Introductions("site-0")
    grid = unnamed(InProcessGrid(numpy_app.make_app(mod, summary_mod), 3))
    who = roster()
    for number in range(1, 20):
        assert list(wait(who, grid, 2, RoundRecord(number))) == ["site-1", "site-2"]
    assert mod.counts["site-0"] == 5  # in rounds 1, 2, 4, 8 and 16


def test_clients_to_evaluate_on_are_waited_for_at_the_start():
    grid = LateGrid(4, at_once=1)
    unnamed(grid)
    assert len(wait(roster(), grid, 2, RoundRecord(1), evaluating=4)) == 4


def test_fewer_clients_than_an_evaluation_needs_cost_the_evaluation_and_no_more():
    grid = InProcessGrid(numpy_app.make_app(summary_mod), 3)
    strategy = PNCS(FedAvg(min_evaluate_nodes=3), num_selected=2, queue_length=0)

    def leave(number, arrays):
        if number == 1:
            grid.contexts.popitem()

    result = strategy.start(grid, numpy_app.initial_arrays(), num_rounds=3, evaluate_fn=leave)
    assert [len(record.delivered) for record in strategy.history] == [2, 2, 2]
    assert list(result.evaluate_metrics_clientapp) == [1]
    assert "too few clients are left for an evaluation" in strategy.history[1].notes[0]


def test_records_share_the_list_of_clients_while_it_stays_the_same():
    grid = Grid(numpy_app.make_app(summary_mod), 6, lambda number: [5] if number > 3 else [])

    def count(server_round, arrays):
        grid.round = server_round + 1

    strategy = PNCS(FedAvg(fraction_evaluate=0.0))
    strategy.start(grid, numpy_app.initial_arrays(), num_rounds=5, evaluate_fn=count)
    lists = [record.clients for record in strategy.history]
    assert lists[0] == ["0", "1", "2", "3", "4", "5"]
    assert lists[0] is lists[1] is lists[2]
    assert lists[3] == ["0", "1", "2", "3", "4"]
    assert lists[3] is lists[4]
