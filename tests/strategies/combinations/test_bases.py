"""What base strategies get of a combination: as with all clients, or a clear refusal."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
from apps import client_fn_app, kinds_app, legacy_app, numpy_app
from coming_and_going import Federation
from flwr.app import Array, ArrayRecord, Context, RecordDict
from flwr.common import parameters_to_ndarrays
from flwr.server import Server, SimpleClientManager
from flwr.server import strategy as older
from flwr.serverapp import strategy as flower
from flwr.serverapp.strategy import FedAvg

from pncs_flower.clients import SummaryMod, summary_mod
from pncs_flower.clients.legacy import SummaryClient
from pncs_flower.simulations.run.in_process import InProcessGrid
from pncs_flower.strategies import (
    PNCS,
    Choice,
    GradientMemory,
    GradientNorm,
    ProportionalSelection,
    RoundRobin,
    SelectionError,
    SelectionRule,
    SelectionStrategy,
    SketchedMean,
    UniformSelection,
)
from pncs_flower.strategies.legacy import LegacySelection
from pncs_flower.strategies.rules import STRATEGIES

TRAIN_ONLY = {"fraction_evaluate": 0.0}
COMBINATIONS = ["surrogates:0.8", "fedvarp", "mifa", "sketched-mean"]
ADAPTIVE = {
    "FedAdam": lambda: flower.FedAdam(**TRAIN_ONLY, eta=0.1, tau=1e-3),
    "FedYogi": lambda: flower.FedYogi(**TRAIN_ONLY, eta=0.1, tau=1e-3),
    "FedAdagrad": lambda: flower.FedAdagrad(**TRAIN_ONLY, eta=0.1, tau=1e-3),
    "FedAvgM": lambda: flower.FedAvgM(**TRAIN_ONLY, server_learning_rate=0.5, server_momentum=0.9),
    "FedProx": lambda: flower.FedProx(**TRAIN_ONLY, proximal_mu=0.1),
}
MOMENTS = ("m_t", "v_t", "momentum_vector")


def run(strategy, rounds=4, clients=6, mods=(summary_mod,), train=numpy_app.train, arrays=None):
    app = numpy_app.make_app(*mods, train=train)
    arrays = arrays or numpy_app.initial_arrays()
    return strategy.start(InProcessGrid(app, clients), arrays, num_rounds=rounds).arrays


def moments(base) -> dict[str, list[np.ndarray]]:
    kept = {name: getattr(base, name, None) for name in MOMENTS}
    return {
        name: [*(value.values() if isinstance(value, dict) else value)]
        for name, value in kept.items()
        if value
    }


@pytest.mark.parametrize("make", ADAPTIVE.values(), ids=ADAPTIVE)
def test_a_base_gets_what_it_would_with_full_participation(make):
    """The clients' updates are all alike, so that those of two fit the mean of all."""

    def alike(message, context):
        reply = numpy_app.train(message, context)
        arrays = message.content["arrays"]
        moved = {n: Array(w.numpy() * np.float32(0.75) - 1) for n, w in arrays.items()}
        reply.content["arrays"] = ArrayRecord(moved)
        return reply

    full = RoundRobin(make(), num_selected=6)
    expected = run(full, train=alike)
    few = SketchedMean(make(), num_selected=2, sketch="layers")
    found = run(few, train=alike)
    for name in expected:
        np.testing.assert_allclose(found[name].numpy(), expected[name].numpy(), rtol=3e-4)
    theirs, ours = moments(full.base), moments(few.base)
    assert theirs.keys() == ours.keys()
    assert bool(ours) == (type(few.base) is not flower.FedProx)
    for name in ours:
        for one, other in zip(ours[name], theirs[name], strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("make", ADAPTIVE.values(), ids=ADAPTIVE)
def test_unlike_clients_that_all_deliver_give_the_base_the_same_as_the_mean(make):
    full, ours = RoundRobin(make(), num_selected=6), SketchedMean(make(), num_selected=6)
    expected, found = run(full), run(ours)
    for name in expected:
        np.testing.assert_allclose(
            found[name].numpy(), expected[name].numpy(), rtol=1e-4, atol=1e-5
        )


# --- refused --------------------------------------------------------------------------------------

FIXED = {"noise_multiplier": 0.1, "clipping_norm": 1.0, "num_sampled_clients": 2}
ADAPTED = {"noise_multiplier": 0.1, "num_sampled_clients": 2}
REFUSED = {
    "Krum": lambda f: f.Krum(),
    "Bulyan": lambda f: f.Bulyan(),
    "FedMedian": lambda f: f.FedMedian(),
    "FedTrimmedAvg": lambda f: f.FedTrimmedAvg(),
    "QFedAvg": lambda f: f.QFedAvg(**({"client_learning_rate": 0.1} if f is flower else {})),
    "FedXgbBagging": lambda f: f.FedXgbBagging(),
    "FedXgbCyclic": lambda f: f.FedXgbCyclic(),
    "server, fixed": lambda f: f.DifferentialPrivacyServerSideFixedClipping(f.FedAvg(), **FIXED),
    "client, fixed": lambda f: f.DifferentialPrivacyClientSideFixedClipping(f.FedAvg(), **FIXED),
    "server, adaptive": lambda f: f.DifferentialPrivacyServerSideAdaptiveClipping(
        f.FedAvg(), **ADAPTED
    ),
    "client, adaptive": lambda f: f.DifferentialPrivacyClientSideAdaptiveClipping(
        f.FedAvg(), **ADAPTED
    ),
    "within": lambda f: f.DifferentialPrivacyServerSideFixedClipping(f.Krum(), **FIXED),
}


@pytest.mark.parametrize("combine", COMBINATIONS)
@pytest.mark.parametrize("name", REFUSED)
def test_a_base_that_counts_on_independent_updates_is_refused(name, combine):
    text = f"combine is '{combine}', but .* (takes no weighted mean|adds noise for).*mean"
    with pytest.raises(ValueError, match=text):
        SketchedMean(REFUSED[name](flower), combine=combine) if combine == "sketched-mean" else (
            RoundRobin(REFUSED[name](flower), combine=combine)
        )


@pytest.mark.parametrize("combine", COMBINATIONS)
@pytest.mark.parametrize("name", REFUSED)
def test_so_is_one_of_the_older_interface(name, combine):
    text = f"combine is '{combine}', but .* (takes no weighted mean|adds noise for).*mean"
    with pytest.raises(ValueError, match=text):
        LegacySelection(REFUSED[name](older), GradientMemory, num_selected=2, combine=combine)


class OwnKrum(flower.Krum):
    """A user's own."""


def test_a_subclass_is_refused_too_and_the_mean_takes_any():
    with pytest.raises(ValueError, match="OwnKrum takes no weighted mean"):
        RoundRobin(OwnKrum(), combine="fedvarp")
    for make in REFUSED.values():
        RoundRobin(make(flower))


# --- every rule with every combination ------------------------------------------------------------


def gradient(message, context):
    return numpy_app.gradient(message, context)


def asks_nothing(kind) -> bool:
    request = kind(FedAvg()).rule.request
    return request is None or request.kind != "update"


@pytest.mark.parametrize("combine", ["mean", *COMBINATIONS])
@pytest.mark.parametrize("name", STRATEGIES)
def test_every_rule_runs_or_is_refused_with_a_remedy(name, combine):
    kind = STRATEGIES[name]
    options = {"combine": combine, "num_selected": 2, "seed": 1}
    if name == "sketched-mean" and combine != "sketched-mean":
        with pytest.raises(ValueError, match="use combine='sketched-mean', or another strategy"):
            kind(FedAvg(), **options)
        return
    if combine == "sketched-mean" and asks_nothing(kind):
        with pytest.raises(ValueError, match=r'asks .*: use one .* or combine="fedvarp"'):
            kind(FedAvg(), **options)
        return
    strategy = kind(FedAvg(), **options)
    train = numpy_app.train

    def with_loss(message, context):
        reply = train(message, context)
        reply.content["metrics"]["train-loss"] = 1.0
        return reply

    arrays = run(strategy, mods=(SummaryMod(gradient=gradient),), train=with_loss, rounds=5)
    assert all(np.isfinite(array.numpy()).all() for array in arrays.values())
    assert all(len(r.delivered) == 2 and not r.rejected for r in strategy.history)
    assert all(bool(r.combined) == (combine != "mean") for r in strategy.history)


@pytest.mark.parametrize("kind", [PNCS, GradientMemory, GradientNorm])
def test_gradients_are_refused_for_the_sketched_mean_and_no_matter_for_surrogates(kind):
    with pytest.raises(ValueError, match=r'asks for the gradient: use .*summary="update"'):
        kind(FedAvg(), summary="gradient", combine="sketched-mean")
    kind(FedAvg(), summary="gradient", combine="fedvarp")


@pytest.mark.parametrize("combine", COMBINATIONS)
def test_a_choice_for_each_layer_is_refused_when_the_strategy_is_made(combine):
    with pytest.raises(ValueError, match=r'chooses for each layer.*combine="mean".*per_layer=Fal'):
        PNCS(FedAvg(), per_layer=True, combine=combine)


@dataclass(frozen=True)
class Layered(SelectionRule):
    """A user's own, which does not say beforehand what its choices are like."""

    num_selected: int = 2

    def select(self, state, now, summaries):
        return Choice(now.available[:2], by_layer={"body": now.available[:2]})


def test_one_that_was_not_announced_is_refused_before_anybody_trains():
    strategy = SelectionStrategy(FedAvg(), Layered(), combine="fedvarp")
    with pytest.raises(ValueError, match=r"chooses for each layer"):
        run(strategy)
    assert not strategy.history[0].bytes_down.get("training")


@pytest.mark.parametrize("name", REFUSED)
def test_a_base_is_refused_for_a_rule_that_draws_when_the_strategy_is_made(name):
    with pytest.raises(ValueError, match="the rule draws some clients more often than others"):
        ProportionalSelection(REFUSED[name](flower), num_selected=2)


@pytest.mark.parametrize("combine", COMBINATIONS)
def test_a_model_without_floating_point_is_refused_before_anybody_trains(combine):
    arrays = ArrayRecord({"trees": Array(np.zeros(4, np.int64)), "none": Array(np.zeros(0))})
    kind = GradientMemory if combine == "sketched-mean" else RoundRobin
    strategy = kind(FedAvg(), combine=combine)
    with pytest.raises(ValueError, match="no floating-point array with a value"):
        run(strategy, arrays=arrays)
    assert not strategy.history[0].bytes_down


# --- arrays of every kind -------------------------------------------------------------------------


@pytest.mark.parametrize("combine", COMBINATIONS)
@pytest.mark.parametrize("kind", [GradientMemory, PNCS])
def test_a_mask_that_is_not_finite_stays_and_the_rest_trains(kind, combine):
    strategy = kind(FedAvg(**TRAIN_ONLY), combine=combine)
    app = kinds_app.make_app(summary_mod)
    models = []

    mask = np.array([0, -np.inf, np.nan, np.inf], np.float32)
    arrays = ArrayRecord({**kinds_app.initial_arrays(), "mask.values": Array(mask)})
    result = strategy.start(
        InProcessGrid(app, 5),
        arrays,
        num_rounds=4,
        evaluate_fn=lambda number, arrays: models.append(arrays),
    )
    assert all(len(r.delivered) == 2 and not r.rejected for r in strategy.history)
    np.testing.assert_array_equal(result.arrays["mask.values"].numpy(), mask)
    kinds_app.assert_same_kinds(result.arrays)
    for before, after in pairwise(models):
        assert (before["conv.weight"].numpy() != after["conv.weight"].numpy()).any()


# --- the older interface --------------------------------------------------------------------------


def proxy(number: int) -> legacy_app.DirectProxy:
    """Return a client in this process."""
    context = Context(1, number, {"partition-id": number}, RecordDict(), {})
    client = SummaryClient(client_fn_app.TargetClient(number).to_client(), context)
    return legacy_app.DirectProxy(number, client)


@pytest.mark.parametrize(
    ("selection", "combine"),
    [
        (RoundRobin, "fedvarp"),
        (UniformSelection, "mifa"),
        (PNCS, "sketched-mean"),
        (GradientMemory, "sketched-mean:store=3,dtype=float16"),
        (SketchedMean, "sketched-mean"),
    ],
)
def test_the_bridge_gives_the_same_as_a_message_strategy(selection, combine):
    strategy = legacy_app.make_strategy(selection, combine=combine)
    manager = SimpleClientManager()
    for number in range(6):
        manager.register(proxy(number))
    server = Server(client_manager=manager, strategy=strategy)
    server.fit(num_rounds=5, timeout=None)
    other = selection(FedAvg(), combine=combine, **legacy_app.OPTIONS)
    grid = InProcessGrid(client_fn_app.make_app(summary_mod), 6)
    arrays = other.start(grid, client_fn_app.initial_arrays(), num_rounds=5).arrays
    assert [r.chosen for r in strategy.history] == [r.chosen for r in other.history]
    assert [r.delivered for r in strategy.history] == [r.chosen for r in other.history]
    for ours, theirs in zip(strategy.history, other.history, strict=True):
        coefficients, others = (r.combined.pop("coefficients", {}) for r in (ours, theirs))
        assert ours.combined == pytest.approx(theirs.combined, rel=1e-4, abs=1e-5)
        assert coefficients == pytest.approx(others, rel=1e-3, abs=1e-5)
        assert bool(coefficients) == ("sketched" in combine)
    for ours, theirs in zip(
        parameters_to_ndarrays(server.parameters), arrays.to_numpy_ndarrays(), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


# --- rounds that come to nothing ------------------------------------------------------------------


class Moody(FedAvg):
    """Returns in round 3 no model, or one that is not finite, or has too few updates."""

    def __init__(self, mood: str, **options) -> None:
        super().__init__(**options)
        self.mood = mood

    def aggregate_train(self, server_round, replies):
        arrays, metrics = super().aggregate_train(server_round, replies)
        if server_round == 3 and self.mood == "no model":
            return None, metrics
        if server_round == 3 and self.mood == "not finite":
            nan = {n: Array(np.full(a.shape, np.nan, a.dtype)) for n, a in arrays.items()}
            return ArrayRecord(nan), metrics
        return arrays, metrics


@pytest.mark.parametrize("mood", ["no model", "not finite", "nobody delivers", "too few"])
@pytest.mark.parametrize("combine", COMBINATIONS)
def test_nothing_is_remembered_of_a_round_that_came_to_nothing(combine, mood):
    failing = {"nobody delivers": range(6), "too few": range(1, 6)}.get(mood, ())
    federation = Federation(fails=lambda client, number: number == 3 and client in failing)
    states, models = [], []
    strategy = GradientMemory(
        Moody(mood, **TRAIN_ONLY), num_selected=2, combine=combine, min_updates=2
    )

    class Listening:
        def opened(self, record, arrays):
            states.append(repr(strategy.state()["combination"]))
            models.append(arrays)

        def __getattr__(self, name):
            return lambda *_: None

    strategy.listeners.append(Listening())
    federation.run(strategy, 5)
    assert states[2] == states[3] != states[4]
    assert strategy.history[2].combined == {}
    assert any("no new model" in note for note in strategy.history[2].notes)
    assert models[2] == models[3] != models[4]
    assert strategy.history[3].combined
    assert strategy.history[4].delivered


def test_what_a_base_raises_is_still_named():
    class Raising(FedAvg):
        def aggregate_train(self, server_round, replies):
            raise KeyError("mine")

    with pytest.raises(SelectionError, match="base strategy Raising raised KeyError in round 1"):
        run(RoundRobin(Raising(**TRAIN_ONLY), combine="fedvarp"))
