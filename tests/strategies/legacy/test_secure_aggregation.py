"""Secure aggregation (SecAgg+), through the bridge to Flower's older interface."""

import numpy as np
import pytest
from apps import client_fn_app, legacy_app
from flwr.app import Context, RecordDict
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.common import parameters_to_ndarrays
from flwr.server import LegacyContext, ServerConfig
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow

from pncs_flower.simulations.run.in_process import InProcessGrid
from pncs_flower.strategies import PNCS, ProportionalSelection, SelectionError
from pncs_flower.strategies.legacy import LegacySelection

CLIENTS, ROUNDS = 6, 3


def run(
    workflow: DefaultWorkflow, *mods, selection=PNCS, **options
) -> tuple[LegacySelection, list[np.ndarray]]:
    models = []

    class Kept(LegacySelection):
        def aggregate_fit(self, server_round, results, failures):
            parameters, metrics = super().aggregate_fit(server_round, results, failures)
            models.append(parameters_to_ndarrays(parameters))
            return parameters, metrics

    options = {"num_selected": 3, "queue_length": 3, "seed": 3, **options}
    strategy = Kept(legacy_app.base(), selection, **options)
    grid = InProcessGrid(ClientApp(legacy_app.client_fn, mods=list(mods)), CLIENTS)
    context = LegacyContext(
        Context(1, 1, {}, RecordDict(), {}), ServerConfig(num_rounds=ROUNDS), strategy
    )
    workflow(grid, context)
    return strategy, models[-1]


def secure() -> DefaultWorkflow:
    fit = SecAggPlusWorkflow(num_shares=3, reconstruction_threshold=2, max_weight=100.0)
    return DefaultWorkflow(fit_workflow=fit)


def test_the_choices_are_those_without_it_and_the_model_but_for_rounding():
    hiding, hidden = run(secure(), secaggplus_mod)
    plain, model = run(DefaultWorkflow())
    assert [r.chosen for r in hiding.history] == [r.chosen for r in plain.history]
    assert [len(r.delivered) for r in hiding.history] == [3] * ROUNDS
    assert all(record.rejected == {} for record in hiding.history)
    for ours, theirs, start in zip(
        hidden, model, client_fn_app.initial_arrays().to_numpy_ndarrays(), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, atol=1e-3)
        assert np.abs(ours - start).max() > 0.1


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        ({"combine": "fedvarp"}, 'combine="mean"'),
        ({"combine": "sketched-mean"}, 'combine="mean"'),
        ({"verify_sketches": True}, "verify_sketches=False"),
        ({"selection": ProportionalSelection, "queue_length": 0}, "a rule that does not"),
    ],
)
def test_what_needs_each_update_is_refused(options, remedy):
    with pytest.raises(SelectionError, match=f"secure aggregation.*{remedy}"):
        run(secure(), secaggplus_mod, **options)
