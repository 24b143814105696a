"""Noise on summaries: as large as it says, and as private as it says."""

import numpy as np
import pytest
from apps import numpy_app
from flwr.serverapp.strategy import FedAvg
from scipy.optimize import brentq
from scipy.stats import norm

from pncs_flower.clients import SketchNoise, SummaryMod
from pncs_flower.simulations.in_process import InProcessGrid
from pncs_flower.strategies import PNCS


def sketches(scale: float) -> dict[str, np.ndarray]:
    return {
        "a": np.full(50_000, scale / 400, np.float32),
        "b": np.full(30_000, scale / 400, np.float32),
    }


def test_noise_has_the_standard_deviation_that_it_states():
    noise = SketchNoise(clip_norm=3.0, noise_multiplier=0.5, secret=1)
    assert noise.standard_deviation == 3.0
    noisy = noise.apply(sketches(0.0), round=1, client="0")
    values = np.concatenate(list(noisy.values()))
    assert values.std() == pytest.approx(3.0, rel=0.01)
    assert values.mean() == pytest.approx(0.0, abs=0.05)


@pytest.mark.parametrize(("scale", "factor"), [(1.0, 1.0), (100.0, None)])
def test_a_summary_is_clipped_as_a_whole_before_the_noise(scale, factor):
    noise = SketchNoise(clip_norm=3.0, noise_multiplier=1e-9, secret=1)
    clean = sketches(scale)
    length = np.sqrt(sum((s.astype(float) ** 2).sum() for s in clean.values()))
    factor = factor or 3.0 / length
    for layer, noisy in noise.apply(clean, round=1, client="0").items():
        np.testing.assert_allclose(noisy, clean[layer] * factor, rtol=1e-4)


def test_noise_differs_by_round_and_client_and_from_run_to_run():
    def noisy(noise, round, client):
        return noise.apply({"a": np.zeros(4, np.float32)}, round, client)["a"].tolist()

    known = SketchNoise(1.0, 1.0, secret=5)
    assert noisy(known, 1, "0") == noisy(known, 1, "0")
    assert len({tuple(noisy(known, r, c)) for r in (1, 2) for c in ("0", "1")}) == 4
    secret = SketchNoise(1.0, 1.0)
    assert noisy(secret, 1, "0") != noisy(secret, 1, "0")


@pytest.mark.parametrize("multiplier", [0.7, 2.0])
def test_epsilon_is_that_of_the_gaussian_mechanism(multiplier):
    """Balle and Wang 2018, theorem 8, solved for ε."""
    pytest.importorskip("dp_accounting", reason="needs pncs-flower[privacy]")
    delta = 1e-5

    def excess(epsilon):
        a = 1 / (2 * multiplier)
        return (
            norm.cdf(a - epsilon * multiplier)
            - np.exp(epsilon) * norm.cdf(-a - epsilon * multiplier)
            - delta
        )

    expected = brentq(excess, 0, 50)
    noise = SketchNoise(1.0, multiplier)
    assert noise.epsilon(delta) == pytest.approx(expected, rel=0.01)
    # Four Gaussian releases are one of half the noise.
    assert noise.epsilon(delta, rounds=4) == pytest.approx(
        SketchNoise(1.0, multiplier / 2).epsilon(delta), rel=0.01
    )
    assert f"(ε, δ) = ({noise.epsilon(delta):.3g}, 1e-05)" in noise.describe()


def test_a_run_with_noise_on_the_summaries_chooses_otherwise_but_delivers_the_same_updates():
    def run(noise):
        strategy = PNCS(FedAvg(fraction_evaluate=0.0), num_selected=3, queue_length=0)
        grid = InProcessGrid(numpy_app.make_app(SummaryMod(noise=noise)), 8)
        strategy.start(grid, numpy_app.initial_arrays(), num_rounds=4)
        assert all(len(record.delivered) == 3 for record in strategy.history)
        assert not any(record.rejected for record in strategy.history)
        return [record.chosen for record in strategy.history]

    assert run(None) != run(SketchNoise(1.0, 10.0, secret=3))


def test_the_client_says_what_it_spends(caplog):
    grid = InProcessGrid(numpy_app.make_app(SummaryMod(noise=SketchNoise(1.0, 2.0))), 3)
    strategy = PNCS(FedAvg(fraction_evaluate=0.0))
    strategy.start(grid, numpy_app.initial_arrays(), num_rounds=2)
    assert caplog.text.count("Sketch noise: clipped to 1, standard deviation 4") == 1


def test_noise_on_a_rounded_wire_format_is_an_error_that_says_what_to_do():
    with pytest.raises(ValueError, match="float16: leave the wire format out"):
        SketchNoise(1.0, 1.0).apply({"a": np.zeros(3, np.float16)}, 1, "0")


@pytest.mark.parametrize("options", [{"clip_norm": 0.0}, {"noise_multiplier": float("nan")}])
def test_option_out_of_range(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        SketchNoise(**{"clip_norm": 1.0, "noise_multiplier": 1.0, **options})
