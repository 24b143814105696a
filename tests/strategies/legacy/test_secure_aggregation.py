"""Secure aggregation (SecAgg+), through the bridge to Flower's older interface."""

import numpy as np
from apps import client_fn_app, legacy_app
from flwr.app import Context, RecordDict
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.common import parameters_to_ndarrays
from flwr.server import LegacyContext, ServerConfig
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow

from pncs_flower.simulations.run.in_process import InProcessGrid
from pncs_flower.strategies import PNCS
from pncs_flower.strategies.legacy import LegacySelection

CLIENTS, ROUNDS = 6, 3


def run(workflow: DefaultWorkflow, *mods) -> tuple[LegacySelection, list[np.ndarray]]:
    models = []

    class Kept(LegacySelection):
        def aggregate_fit(self, server_round, results, failures):
            parameters, metrics = super().aggregate_fit(server_round, results, failures)
            models.append(parameters_to_ndarrays(parameters))
            return parameters, metrics

    strategy = Kept(legacy_app.base(), PNCS, num_selected=3, queue_length=3, seed=3)
    grid = InProcessGrid(ClientApp(legacy_app.client_fn, mods=list(mods)), CLIENTS)
    context = LegacyContext(
        Context(1, 1, {}, RecordDict(), {}), ServerConfig(num_rounds=ROUNDS), strategy
    )
    workflow(grid, context)
    return strategy, models[-1]


def test_the_choices_are_those_without_it_and_the_model_but_for_rounding():
    fit = SecAggPlusWorkflow(num_shares=3, reconstruction_threshold=2, max_weight=100.0)
    secure, hidden = run(DefaultWorkflow(fit_workflow=fit), secaggplus_mod)
    plain, model = run(DefaultWorkflow())
    assert [r.chosen for r in secure.history] == [r.chosen for r in plain.history]
    assert [len(r.delivered) for r in secure.history] == [3] * ROUNDS
    assert all(record.rejected == {} for record in secure.history)
    for ours, theirs, start in zip(
        hidden, model, client_fn_app.initial_arrays().to_numpy_ndarrays(), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, atol=1e-3)
        assert np.abs(ours - start).max() > 0.1
