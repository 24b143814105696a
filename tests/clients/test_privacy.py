"""Noise on summaries: as large as it says, and as private as it says."""

import numpy as np
import pytest
from apps import numpy_app
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp.strategy import FedAvg
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.stats import norm

from pncs_flower.clients import SketchNoise, SummaryMod
from pncs_flower.protocol import MARKER, SUMMARY, WHOLE, SummaryRequest
from pncs_flower.simulations.run.in_process import InProcessGrid
from pncs_flower.strategies import PNCS, GradientNorm, NoSummariesError, PowerOfChoice


def sketches(scale: float) -> dict[str, np.ndarray]:
    return {
        "a": np.full(50_000, scale / 400, np.float32),
        "b": np.full(30_000, scale / 400, np.float32),
    }


def noisy_layers(noise, layers, round=1, client="0") -> dict[str, np.ndarray]:
    return noise.apply({SUMMARY: layers}, round, client)[SUMMARY]


def test_noise_has_the_standard_deviation_that_it_states():
    noise = SketchNoise(clip_norm=3.0, noise_multiplier=0.5, secret=1)
    assert noise.standard_deviation == 3.0
    noisy = noisy_layers(noise, sketches(0.0))
    values = np.concatenate(list(noisy.values()))
    assert values.std() == pytest.approx(3.0, rel=0.01)
    assert values.mean() == pytest.approx(0.0, abs=0.05)


@pytest.mark.parametrize(("scale", "factor"), [(1.0, 1.0), (100.0, None)])
def test_a_summary_is_clipped_as_a_whole_before_the_noise(scale, factor):
    noise = SketchNoise(clip_norm=3.0, noise_multiplier=1e-9, secret=1)
    clean = sketches(scale)
    length = np.sqrt(sum((s.astype(float) ** 2).sum() for s in clean.values()))
    factor = factor or 3.0 / length
    for layer, noisy in noisy_layers(noise, clean).items():
        np.testing.assert_allclose(noisy, clean[layer] * factor, rtol=1e-4)


@pytest.mark.parametrize("longer", [SUMMARY, WHOLE])
def test_two_sketches_of_one_answer_are_clipped_and_noised_as_one(longer):
    clean = {SUMMARY: sketches(1.0), WHOLE: {"*": np.full(10_000, 0.01, np.float32)}}
    clean[longer] = {layer: 400 * values for layer, values in clean[longer].items()}
    length = np.sqrt(
        sum((s.astype(float) ** 2).sum() for part in clean.values() for s in part.values())
    )
    almost_none = SketchNoise(clip_norm=3.0, noise_multiplier=1e-12, secret=1)
    clipped = almost_none.apply(clean, 1, "0")
    for record, part in clipped.items():
        for layer, values in part.items():
            np.testing.assert_allclose(values, clean[record][layer] * (3.0 / length), rtol=1e-4)
    noise = SketchNoise(clip_norm=3.0, noise_multiplier=0.5, secret=1)
    noisy = noise.apply(clean, 1, "0")
    drawn = {r: {n: noisy[r][n] - clipped[r][n] for n in part} for r, part in clipped.items()}
    for part in drawn.values():
        for values in part.values():
            assert values.std() == pytest.approx(3.0, rel=0.03)
    # One stream: noise that two sketches share would be the difference of the two without it.
    first, second = drawn[SUMMARY]["a"][:10_000], drawn[WHOLE]["*"]
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.05


def test_nothing_leaves_where_the_sketch_of_the_whole_update_alone_is_not_finite():
    clean = {SUMMARY: sketches(1.0), WHOLE: {"*": np.array([1.0, np.inf], np.float32)}}
    with pytest.raises(ValueError, match=r"'\*' holds a value that is not finite"):
        SketchNoise(1.0, 1.0).apply(clean, 1, "0")


def answer_with_noise(noise: SketchNoise | None, request: SummaryRequest) -> Message:
    grid = InProcessGrid(numpy_app.make_app(SummaryMod(noise=noise)), 1)
    marker = {"phase": "summarize", "round": 1, "seed": 5, "ticket": "a", **request.to_config()}
    records = {"arrays": numpy_app.initial_arrays(), "config": ConfigRecord()}
    content = RecordDict({**records, MARKER: ConfigRecord(marker)})
    (reply,) = grid.send_and_receive([Message(content, 1000, MessageType.TRAIN)])
    return reply


def test_a_client_with_noise_sends_two_sketches_of_one_norm():
    request = SummaryRequest(sketch="count:4", besides="count:8")
    clean = answer_with_noise(None, request).content
    sent = answer_with_noise(SketchNoise(0.25, 1e-9, secret=1), request).content
    assert set(sent) == set(clean) == {SUMMARY, WHOLE}

    def numbers(content):
        both = [content[SUMMARY], content[WHOLE]]
        return np.concatenate([a.numpy() for record in both for a in record.values()])

    assert np.linalg.norm(numbers(clean)) > 1
    assert np.linalg.norm(numbers(sent)) == pytest.approx(0.25, rel=1e-5)
    scale = 0.25 / np.linalg.norm(numbers(clean))
    np.testing.assert_allclose(numbers(sent), numbers(clean) * scale, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize(
    ("besides", "reason"),
    [
        ("power-moments:1", "'power-moments:1' cannot be clipped"),
        ("count:4@int8", "noise needs sketches in float32, but they are in int8"),
    ],
)
def test_a_second_sketch_that_cannot_be_noised_is_refused_too(besides, reason):
    request = SummaryRequest(sketch="count:4", besides=besides)
    reply = answer_with_noise(SketchNoise(1.0, 1.0), request)
    assert reason in reply.error.reason


def test_noise_differs_by_round_and_client_and_from_run_to_run():
    def noisy(noise, round, client):
        return noisy_layers(noise, {"a": np.zeros(4, np.float32)}, round, client)["a"].tolist()

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
        strategy = PNCS(
            FedAvg(fraction_evaluate=0.0), num_selected=3, queue_length=0, sketch="layers"
        )
        grid = InProcessGrid(numpy_app.make_app(SummaryMod(noise=noise)), 8)
        strategy.start(grid, numpy_app.initial_arrays(), num_rounds=4)
        assert all(len(record.delivered) == 3 for record in strategy.history)
        assert not any(record.rejected for record in strategy.history)
        return [record.chosen for record in strategy.history]

    assert run(None) != run(SketchNoise(1.0, 10.0, secret=3))


def test_the_client_says_what_it_spends(caplog):
    grid = InProcessGrid(numpy_app.make_app(SummaryMod(noise=SketchNoise(1.0, 2.0))), 3)
    strategy = PNCS(FedAvg(fraction_evaluate=0.0), sketch="layers")
    strategy.start(grid, numpy_app.initial_arrays(), num_rounds=2)
    assert caplog.text.count("Sketch noise: clipped to 1, standard deviation 4") == 1


@pytest.mark.parametrize("multiplier", [1e-9, 1e-3, 0.01, 1e6])
def test_the_cost_of_any_noise_is_told_and_never_costs_the_summary(multiplier, caplog):
    """An accountant that lays out a grid of losses asks for 76 GB where there is little noise."""
    pytest.importorskip("dp_accounting", reason="needs pncs-flower[privacy]")
    noise = SketchNoise(1.0, multiplier, secret=1)
    grid = InProcessGrid(numpy_app.make_app(SummaryMod(noise=noise)), 3)
    strategy = PNCS(FedAvg(fraction_evaluate=0.0), sketch="layers")
    strategy.start(grid, numpy_app.initial_arrays(), num_rounds=1)
    assert not strategy.history[0].rejected
    assert f"(ε, δ) = ({noise.epsilon(1e-5):.3g}, 1e-05)" in caplog.text


@pytest.mark.parametrize(
    ("delta", "rounds", "message"),
    [(0.0, 1, "delta is 0"), (1.0, 1, "delta is 1"), (2.0, 1, "delta is 2"), (0.1, 0, "rounds is")],
)
def test_a_cost_of_nothing_is_refused(delta, rounds, message):
    with pytest.raises(ValueError, match=message):
        SketchNoise(1.0, 1.0).epsilon(delta, rounds)


def test_no_honest_client_is_left_out_since_noise_made_its_norm_negative():
    strategy = GradientNorm(FedAvg(fraction_evaluate=0.0), num_selected=2, queue_length=0)
    mod = SummaryMod(noise=SketchNoise(1.0, 1.0, secret=1))
    grid = InProcessGrid(numpy_app.make_app(mod), 8)
    strategy.start(grid, numpy_app.initial_arrays(), num_rounds=4)
    assert not any(record.rejected for record in strategy.history)


def test_a_sketch_that_cannot_be_clipped_is_refused_with_another():
    """Clipped with its norm, the moments would be those of other vectors, noise or not."""
    strategy = PNCS(FedAvg(fraction_evaluate=0.0), sketch="power-moments:1")
    grid = InProcessGrid(numpy_app.make_app(SummaryMod(noise=SketchNoise(1.0, 1.0))), 3)
    with pytest.raises(NoSummariesError, match=r"sketch='coordinates:2%'"):
        strategy.start(grid, numpy_app.initial_arrays(), num_rounds=1)
    assert not any(numpy_app.times_trained(context) for context in grid.contexts.values())


def test_noise_on_a_rounded_wire_format_is_an_error_that_says_what_to_do():
    with pytest.raises(ValueError, match="float16: give the strategy a sketch without"):
        noisy_layers(SketchNoise(1.0, 1.0), {"a": np.zeros(3, np.float16)})


FLOAT32_MAX = float(np.finfo(np.float32).max)
TINY = 1e-45  # the smallest subnormal number


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("where", [("a",), ("b",), ("a", "b"), ("one",), ("a", "b", "one")])
def test_nothing_of_a_summary_that_is_not_finite_leaves(bad, where):
    layers = {"a": np.full(5, 1e6, np.float32), "b": np.ones(3, np.float32)}
    layers["one"] = np.zeros(1, np.float32)
    for layer in where:
        layers[layer][-1] = bad
    for secret in (None, 1):
        with pytest.raises(ValueError, match=f"'{where[0]}' holds a value that is not finite"):
            noisy_layers(SketchNoise(1.0, 1.0, secret), layers)


def test_a_client_whose_training_diverges_sends_an_error_and_none_of_its_numbers():
    def diverging(message, context, call_next):
        reply = call_next(message, context)
        if context.node_config["partition-id"] == 0:
            weights = reply.content["arrays"]["head.bias"].numpy().copy()
            weights[0] = np.nan
            reply.content["arrays"]["head.bias"] = ArrayRecord([weights])["0"]
        return reply

    app = numpy_app.make_app(SummaryMod(noise=SketchNoise(1.0, 1.0)), diverging)
    sent: list[Message] = []

    class Listening(InProcessGrid):
        def send_and_receive(self, messages, *, timeout=None):
            replies = list(super().send_and_receive(messages, timeout=timeout))
            sent.extend(replies)
            return replies

    strategy = PNCS(FedAvg(fraction_evaluate=0.0), num_selected=2, sketch="layers")
    strategy.start(Listening(app, 4), numpy_app.initial_arrays(), num_rounds=1)
    assert "not finite, so it cannot be clipped" in strategy.history[0].rejected["0"]
    (refused,) = [reply for reply in sent if reply.has_error()]
    assert not refused.has_content()


values = st.floats(width=32, allow_nan=False, allow_infinity=False) | st.sampled_from(
    [FLOAT32_MAX, -FLOAT32_MAX, TINY, -TINY, 0.0]
)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.lists(values, max_size=40), max_size=4), st.sampled_from([1e-30, 0.5, 1e30]))
def test_what_is_released_without_its_noise_is_no_longer_than_the_clip_norm(layers, clip_norm):
    noise = SketchNoise(clip_norm, 1e-6, secret=2)
    clean = {f"layer {n}": np.array(v, np.float32) for n, v in enumerate(layers)}
    released = noisy_layers(noise, clean)
    only_noise = noisy_layers(noise, {n: np.zeros_like(v) for n, v in clean.items()})
    total = 0.0
    for layer, value in released.items():
        assert value.dtype == np.float32
        assert value.shape == clean[layer].shape
        assert np.isfinite(value).all()
        total += float(((value.astype(float) - only_noise[layer].astype(float)) ** 2).sum())
    # Nothing else is lost than float32's rounding of the sum and of the noise.
    assert np.sqrt(total) <= clip_norm * (1 + 1e-6)


@pytest.mark.parametrize("value", [FLOAT32_MAX, 1e30, 1e-30, TINY])
def test_huge_and_subnormal_values_keep_their_direction(value):
    clean = {"a": np.array([value, 0.0, -value], np.float32), "b": np.zeros(2, np.float32)}
    length = np.sqrt(2) * float(clean["a"][0])
    released = noisy_layers(SketchNoise(2.0, 1e-12, secret=1), clean)
    expected = clean["a"].astype(float) * min(1.0, 2.0 / length)
    np.testing.assert_allclose(released["a"], expected, rtol=1e-6, atol=1e-10)


def test_no_layers_are_no_layers():
    assert noisy_layers(SketchNoise(1.0, 1.0), {}) == {}


def test_the_systems_noise_is_normal_and_never_the_same_twice():
    noise = SketchNoise(clip_norm=1.0, noise_multiplier=0.5)
    big = {"a": np.zeros(1_500_001, np.float32), "b": np.zeros(1, np.float32)}  # in two blocks
    first, second = (noisy_layers(noise, big)["a"].astype(float) for _ in range(2))
    assert first.std() == pytest.approx(1.0, rel=0.005)
    assert first.mean() == pytest.approx(0.0, abs=0.005)
    for quantile in (0.001, 0.1, 0.9, 0.999):
        assert (first < norm.ppf(quantile)).mean() == pytest.approx(quantile, rel=0.1)
    # Neither from one draw to the next nor from one number to the next.
    for other in (second, np.roll(first, 1), np.roll(first, len(first) // 2)):
        assert abs(np.corrcoef(first, other)[0, 1]) < 0.01


def test_a_loss_does_not_leave_beside_the_noise():
    strategy = PowerOfChoice(FedAvg(fraction_evaluate=0.0), num_selected=2, candidates=2)
    grid = InProcessGrid(numpy_app.make_app(SummaryMod(noise=SketchNoise(1.0, 1.0))), 3)
    with pytest.raises(NoSummariesError, match="sends nothing without noise"):
        strategy.start(grid, numpy_app.initial_arrays(), num_rounds=1)


@pytest.mark.parametrize(
    ("clip_norm", "multiplier"),
    [(1e38, 1.0), (1e-200, 1e-200), (1e308, 1e308), (1.0, 1e38), (1e38, 1e-30)],
)
def test_noise_that_is_zero_or_does_not_fit_into_float32_is_refused(clip_norm, multiplier):
    with pytest.raises(ValueError, match="fits into float32"):
        SketchNoise(clip_norm, multiplier)


@pytest.mark.parametrize(
    "options",
    [
        {"clip_norm": 0.0},
        {"noise_multiplier": float("nan")},
        {"clip_norm": "1"},
        {"clip_norm": True},
    ],
)
def test_option_out_of_range(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        SketchNoise(**{"clip_norm": 1.0, "noise_multiplier": 1.0, **options})
