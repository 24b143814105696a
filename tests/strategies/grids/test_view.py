"""A grid around a grid hides nothing of it but the nodes that it is to hide."""

import pytest
from apps import numpy_app
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

from pncs_flower.clients import summary_mod
from pncs_flower.simulations.run.in_process import InProcessGrid
from pncs_flower.strategies import PNCS, TooFewClientsError
from pncs_flower.strategies.grids import view as grid_view
from pncs_flower.strategies.grids.polling import PollingGrid
from pncs_flower.strategies.grids.view import GridView, GridWrapper
from pncs_flower.strategies.legacy.grid import ProxyGrid

has_nodes = pytest.mark.skipif(
    not hasattr(Grid, "get_nodes"), reason="grids have no get_nodes before Flower 1.42"
)


class Named(InProcessGrid):
    """Tells the names of its nodes, as a SuperLink does."""

    def get_nodes(self):
        nodes = list(super().get_nodes())
        for node in nodes:
            node.name = f"site-{node.node_id}"
        return nodes


def make_grid(kind=InProcessGrid):
    return kind(numpy_app.make_app(summary_mod), 4)


@has_nodes
def test_every_grid_tells_of_its_nodes():
    ids = [1000, 1001, 1002, 1003]
    for around in (GridWrapper, PollingGrid, lambda grid: GridView(grid, ids), lambda grid: grid):
        assert [node.node_id for node in around(make_grid()).get_nodes()] == ids
    assert list(ProxyGrid().get_nodes()) == []


@has_nodes
def test_what_the_grid_tells_of_a_node_is_not_lost():
    for around in (GridWrapper, PollingGrid, lambda grid: GridView(grid, [1002, 1000])):
        names = {node.node_id: node.name for node in around(make_grid(Named)).get_nodes()}
        assert names[1002] == "site-1002"


@has_nodes
def test_a_view_tells_of_its_own_nodes_alone_and_in_their_order():
    view = GridView(PollingGrid(make_grid(Named)), [1002, 1000, 4711])
    assert [node.node_id for node in view.get_nodes()] == [1002, 1000]


@has_nodes
def test_a_base_that_looks_at_nodes_is_given_the_chosen():
    class Looking(FedAvg):
        def configure_train(self, server_round, arrays, config, grid):
            seen.append([node.node_id for node in grid.get_nodes()])
            return super().configure_train(server_round, arrays, config, grid)

    seen = []
    strategy = PNCS(Looking(fraction_evaluate=0.0), num_selected=2)
    strategy.start(make_grid(), numpy_app.initial_arrays(), num_rounds=2)
    assert [len(nodes) for nodes in seen] == [2, 2]


def test_a_base_that_is_slow_between_its_looks_is_not_refused(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(grid_view.time, "monotonic", lambda: clock[0])
    view = GridView(make_grid(), [1000, 1001])
    for _ in range(5):
        assert list(view.get_node_ids()) == [1000, 1001]
        clock[0] += 100.0


def test_a_base_that_looks_often_and_quickly_is_not_refused():
    view = GridView(make_grid(), [1000, 1001])
    assert [len(list(view.get_node_ids())) for _ in range(1000)] == [2] * 1000


@pytest.mark.parametrize("look", ["get_node_ids", pytest.param("get_nodes", marks=has_nodes)])
@pytest.mark.parametrize("pause", [0.01, 1.0, 60.0])
def test_a_base_that_waits_for_ever_is_told(monkeypatch, look, pause):
    clock = [0.0]
    monkeypatch.setattr(grid_view.time, "monotonic", lambda: clock[0])
    view = GridView(make_grid(), [1000, 1001])

    def wait():
        while clock[0] < 1000.0:
            getattr(view, look)()
            clock[0] += pause

    with pytest.raises(TooFewClientsError, match="is given 2 clients, but waits for more"):
        wait()
