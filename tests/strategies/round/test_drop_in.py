"""Ordinary apps with one line added on each side, over the base strategies that people use."""

import numpy as np
import pytest
from apps import client_fn_app, numpy_app, sklearn_app
from flwr.clientapp.mod import fixedclipping_mod
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAdam,
    FedAvg,
    FedMedian,
    FedProx,
    Krum,
)

from pncs_flower.clients import summary_mod
from pncs_flower.simulations.run.in_process import InProcessGrid
from pncs_flower.strategies import PNCS

APPS = {"numpy": numpy_app, "scikit-learn": sklearn_app, "client_fn": client_fn_app}
ONLY_TRAIN = {"fraction_evaluate": 0.0}
BASES = {
    "FedAvg": lambda: FedAvg(**ONLY_TRAIN),
    "FedAdam": lambda: FedAdam(**ONLY_TRAIN),
    "FedProx": lambda: FedProx(proximal_mu=0.1, **ONLY_TRAIN),
    "FedMedian": lambda: FedMedian(**ONLY_TRAIN),
    "Krum": lambda: Krum(**ONLY_TRAIN),
    "DP(FedAvg)": lambda: DifferentialPrivacyServerSideFixedClipping(
        FedAvg(**ONLY_TRAIN), noise_multiplier=0.01, clipping_norm=10.0, num_sampled_clients=3
    ),
}


@pytest.mark.parametrize("base", BASES.values(), ids=BASES)
@pytest.mark.parametrize("app", APPS.values(), ids=APPS)
def test_app_runs_with_one_line_on_each_side(app, base):
    grid = InProcessGrid(app.make_app(summary_mod), num_clients=10)
    strategy = PNCS(base(), num_selected=3)
    initial = app.initial_arrays()
    result = strategy.start(grid, initial, num_rounds=3)
    assert [len(record.delivered) for record in strategy.history] == [3, 3, 3]
    assert all(not record.rejected for record in strategy.history)
    assert list(result.arrays) == list(initial)
    moved = [np.abs(result.arrays[n].numpy() - initial[n].numpy()).max() for n in initial]
    assert min(moved) > 0
    assert np.isfinite(moved).all()


def test_a_wrapper_may_also_be_outside():
    inner = PNCS(FedAvg(**ONLY_TRAIN), num_selected=3)
    strategy = DifferentialPrivacyServerSideFixedClipping(
        inner, noise_multiplier=0.01, clipping_norm=10.0, num_sampled_clients=3
    )
    grid = InProcessGrid(numpy_app.make_app(summary_mod), num_clients=10)
    result = strategy.start(grid, numpy_app.initial_arrays(), num_rounds=3)
    assert [len(record.delivered) for record in inner.history] == [3, 3, 3]
    assert result.arrays is not None


def test_a_client_side_privacy_mod_works_behind_the_summary_mod():
    """The kept update is the clipped one, so nothing unclipped leaves the client."""
    clipping_norm = 0.05
    base = DifferentialPrivacyClientSideFixedClipping(
        FedAvg(**ONLY_TRAIN),
        noise_multiplier=0.0,
        clipping_norm=clipping_norm,
        num_sampled_clients=1,
    )
    base.strategy.min_train_nodes = base.strategy.min_available_nodes = 1
    grid = InProcessGrid(numpy_app.make_app(summary_mod, fixedclipping_mod), num_clients=4)
    strategy = PNCS(base, num_selected=1)
    result = strategy.start(grid, numpy_app.initial_arrays(), num_rounds=1)
    norm = np.sqrt(sum(float((a.numpy() ** 2).sum()) for a in result.arrays.values()))
    assert norm == pytest.approx(clipping_norm, rel=1e-4)


def test_client_fn_app_with_one_line_is_evaluated_too():
    grid = InProcessGrid(client_fn_app.make_app(summary_mod), num_clients=4)
    result = PNCS(FedAvg()).start(grid, client_fn_app.initial_arrays(), num_rounds=1)
    metrics = result.evaluate_metrics_clientapp[1]
    assert metrics["loss"] > 0
    assert metrics["distance"] > 0


def test_client_fn_app_delivers_what_fit_returned():
    strategy = PNCS(FedAvg(**ONLY_TRAIN))
    grid = InProcessGrid(client_fn_app.make_app(summary_mod), num_clients=4)
    result = strategy.start(grid, client_fn_app.initial_arrays(), num_rounds=1)
    chosen = [int(client) for client in strategy.history[0].chosen]
    weights = np.array([client + 1.0 for client in chosen])
    halves = [client_fn_app.TargetClient(client).targets[0] / 2 for client in chosen]
    expected = np.tensordot(weights / weights.sum(), np.stack(halves), 1)
    np.testing.assert_allclose(result.arrays["0"].numpy(), expected, rtol=1e-6)
