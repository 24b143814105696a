"""The contexts of a simulation's clients: as a dict's, and made only for those that need one."""

import sys

import pytest
from apps import numpy_app
from flwr.app import Context
from flwr.serverapp.strategy import FedAvg

from pncs_flower.clients import summary_mod
from pncs_flower.simulations.run.in_process import InProcessGrid
from pncs_flower.strategies import PNCS


def grid_of(num_clients: int, made: list[int], workers: int = 1) -> InProcessGrid:
    """Return a grid that notes whose context it makes to keep it."""
    grid = InProcessGrid(numpy_app.make_app(summary_mod), num_clients, workers=workers)
    keep = type(grid.contexts).__getitem__

    class Noting(type(grid.contexts)):
        def __getitem__(self, node_id: int) -> Context:
            made.append(node_id)
            return keep(self, node_id)

    grid.contexts.__class__ = Noting
    return grid


@pytest.mark.parametrize("workers", [1, 2])
def test_clients_that_are_only_asked_who_they_are_leave_no_context(workers):
    if workers > 1 and sys.platform != "linux":
        pytest.skip("workers need Linux")
    made: list[int] = []
    with grid_of(30, made, workers) as grid:
        strategy = PNCS(FedAvg(fraction_evaluate=0.0), num_selected=2, candidates=5)
        strategy.start(grid, numpy_app.initial_arrays(), num_rounds=2)
    asked = {1000 + int(client) for record in strategy.history for client in record.asked}
    assert len(strategy.history[0].clients) == 30
    assert set(made) == asked  # these have trained, which the app remembers


def test_a_context_stays_the_same_object_once_it_was_asked_for():
    contexts = InProcessGrid(numpy_app.make_app(), 3).contexts
    assert contexts.look(1001) is not contexts.look(1001)
    assert contexts[1001] is contexts[1001] is contexts.look(1001)
    assert contexts[1001].node_config == {"partition-id": 1, "num-partitions": 3}


def test_contexts_are_those_of_a_dict():
    contexts = InProcessGrid(numpy_app.make_app(), 4).contexts
    assert list(contexts) == [1000, 1001, 1002, 1003]
    assert [context.node_id for context in contexts.values()] == list(contexts)
    last, context = contexts.popitem()
    assert (last, context.node_id, len(contexts)) == (1003, 1003, 3)
    assert contexts.pop(1000).node_id == 1000
    assert 1000 not in contexts
    assert contexts.get(1000) is None
    with pytest.raises(KeyError):
        contexts[1000]
    contexts.update({1000: context})
    assert list(contexts) == [1001, 1002, 1000]
    assert contexts[1000] is context
    del contexts[1001]
    assert contexts.keys() & {1001, 1002} == {1002}
    contexts.clear()
    with pytest.raises(KeyError, match="no client"):
        contexts.popitem()
