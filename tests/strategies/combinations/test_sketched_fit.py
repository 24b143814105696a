"""The sketched mean, against the method in plain NumPy; all clients are asked."""

import json
import math

import numpy as np
import pytest
from apps import numpy_app
from coming_and_going import Federation, Unweighted, examples, shares
from culprits import culprit_sends, with_update
from flwr.app import Array, ArrayRecord
from flwr.serverapp.strategy import FedAvg

from pncs_flower.clients import SummaryMod, summary_mod
from pncs_flower.clients.privacy import SketchNoise
from pncs_flower.protocol import SUMMARY
from pncs_flower.simulations.run.in_process import InProcessGrid
from pncs_flower.strategies import (
    PNCS,
    GradientMemory,
    RoundRobin,
    SelectionStrategy,
    SketchedMean,
)
from pncs_flower.strategies.combinations import SketchedFit
from pncs_flower.strategies.rules.pncs import PNCSRule

TRAIN_ONLY = {"fraction_evaluate": 0.0}
RIDGE = 0.01
WEIGHTED = {
    "examples": (lambda: FedAvg(**TRAIN_ONLY), examples),
    "own key": (
        lambda: FedAvg(**TRAIN_ONLY, weighted_by_key="own-weight"),
        lambda client, number: 10.5 - client,
    ),
    "none": (lambda: Unweighted(**TRAIN_ONLY), lambda client, number: 1),
}


def ridge(target, owners, columns, w) -> np.ndarray:
    """Solve the ridge problem as one problem of least squares."""
    newest = {owner: at for at, owner in enumerate(owners)}
    prior = np.zeros(len(owners))
    for owner, at in newest.items():
        prior[at] = w.get(owner, 0)
    prior /= prior.sum() or 1
    scale = math.sqrt(RIDGE) * np.linalg.norm(columns, axis=1)
    rows = np.vstack([columns.T, np.diag(scale)])
    right = np.concatenate([target, scale * prior])
    return np.linalg.lstsq(rows, right, rcond=None)[0]


class Reference:
    """The method's memory: stored updates, and what is left over."""

    def __init__(self, most: int) -> None:
        self.most, self.left = most, 0.0
        self.stored: list[tuple[str, np.ndarray]] = []

    def target(self, updates, w):
        return sum(w[c] * update for c, update in updates.items()) + self.left

    def choose(self, updates, w, free, size):
        target, columns, chosen = self.target(updates, w), list(self.stored), []
        for _ in range(size):
            residual = target
            if columns:
                owners, rows = zip(*columns, strict=True)
                residual = target - ridge(target, owners, np.array(rows), w) @ np.array(rows)
            best = max(
                (c for c in free if c not in chosen),
                key=lambda c: abs(updates[c] @ residual) / np.linalg.norm(updates[c]),
            )
            chosen.append(best)
            columns.append((best, updates[best]))
        return chosen

    def combine(self, updates, w, delivered):
        columns = [*self.stored, *((c, updates[c]) for c in delivered)]
        owners, rows = zip(*columns, strict=True)
        target = self.target(updates, w)
        applied = ridge(target, owners, np.array(rows), w) @ np.array(rows)
        self.left = target - applied
        mean = sum(w[c] * update for c, update in updates.items())
        self.left *= min(1.0, np.linalg.norm(mean) / np.linalg.norm(self.left))
        self.stored = columns[max(0, len(columns) - self.most) :]
        return applied


def close(actual: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(actual, expected, rtol=3e-3, atol=3e-3)  # of float16
    exact = np.ones(len(actual), bool)
    exact[-9:-4] = False
    np.testing.assert_allclose(actual[exact], expected[exact], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("most", [0, 3, 100])
@pytest.mark.parametrize("weighted", WEIGHTED)
def test_each_round_is_the_method_in_plain_numpy(weighted, most):
    base, weight = WEIGHTED[weighted]
    # A client that fails is not asked in the next round: only the last is one of failures.
    federation = Federation(fails=lambda client, number: number == 7 and client in (2, 3))
    strategy = SketchedMean(
        base(), num_selected=3, sketch="layers", combine=f"sketched-mean:{most},bound=inf"
    )
    federation.run(strategy, 7)
    reference, known = Reference(most), {}
    for record in strategy.history:
        updates = {c: federation.update(int(c), record.round) for c in record.clients}
        w = shares(record.clients, {}, known) if known else dict.fromkeys(record.clients, 1 / 6)
        free = [c for c in record.clients if c not in record.backing_off]
        best = reference.choose(updates, w, free, 3)
        assert set(record.chosen) == set(best), record.round
        known |= {c: weight(int(c), record.round) for c in record.delivered}
        there = [c for c in record.clients if c in {*record.delivered} or c not in record.chosen]
        w, sent = shares(there, {}, known), {c: updates[c] for c in there}
        close(federation.change(record.round), reference.combine(sent, w, record.delivered))
    assert 0 < len(strategy.history[-1].delivered) < 3


@pytest.mark.parametrize("sketch", ["layers", "count:8"])
@pytest.mark.parametrize("bound", ["1", "inf"])
def test_with_everybody_asked_and_chosen_it_is_the_mean_of_all(sketch, bound):
    ours, plain = Federation(), Federation()
    combine = f"sketched-mean:bound={bound}"
    ours.run(SketchedMean(FedAvg(), num_selected=6, sketch=sketch, combine=combine), 4)
    plain.run(RoundRobin(FedAvg(), num_selected=6), 4)
    for one, other in zip(ours.models, plain.models, strict=True):
        for name in one:
            tolerance = 3e-3 if name == "half.weight" else 2e-6
            np.testing.assert_allclose(
                one[name].numpy(), other[name].numpy(), rtol=tolerance, atol=tolerance
            )


@pytest.mark.parametrize("rule", [SketchedMean, GradientMemory, PNCS])
def test_what_was_applied_and_what_is_left_are_the_means_of_all(rule):
    """Once all have delivered, sizes are known and updates that stay the same span the mean."""
    # Each client changes the weights by the same in each round, which the stored updates know, so
    # what is left over vanishes, and all together is full participation.
    federation = Federation(constant=True)
    sketch = {} if rule is PNCS else {"sketch": "layers"}
    strategy = rule(
        Unweighted(**TRAIN_ONLY),
        num_selected=2,
        combine=SketchedFit(sketch="layers", bound=math.inf),
        queue_length=4,
        **sketch,
    )
    federation.run(strategy, 14)
    mean = np.mean([federation.update(k, 1) for k in range(6)], axis=0)
    left = strategy.state()["combination"]["memory"]["left"]
    applied = sum(federation.change(number) for number in range(1, 15))
    np.testing.assert_allclose(applied + left, 14 * mean, rtol=1e-2, atol=1e-2)
    assert np.linalg.norm(left) < 5e-3 * np.linalg.norm(mean)
    assert np.linalg.norm(federation.change(14) - mean) < 5e-3 * np.linalg.norm(mean)
    assert strategy.history[-1].combined["residual"] < 5e-3


@pytest.mark.parametrize("rule", [SketchedMean, GradientMemory, PNCS])
def test_the_record_says_what_was_applied(rule):
    federation = Federation(clients=5)
    strategy = rule(FedAvg(**TRAIN_ONLY), num_selected=2, combine="sketched-mean:store=4")
    federation.run(strategy, 6)
    delivered = {}
    for record in strategy.history:
        delivered |= {
            f"{c}@{record.round}": federation.update(int(c), record.round) for c in record.delivered
        }
        combined = json.loads(json.dumps(record.to_dict(), allow_nan=False))["combined"]
        assert set(combined) == {"coefficients", "residual", "stored", "stored-bytes"}
        coefficients = combined["coefficients"]
        close(
            federation.change(record.round),
            sum(c * delivered[name] for name, c in coefficients.items()),
        )
        fresh = [f"{c}@{record.round}" for c in record.delivered]
        assert list(coefficients)[-len(fresh) :] == fresh
        assert combined["stored"] == len(coefficients) - len(fresh) <= 4
        assert combined["stored-bytes"] == combined["stored"] * 25 * 4
        assert 0 <= combined["residual"] < 2
        assert all(abs(c) <= 1 for c in coefficients.values())
        assert 0 < record.seconds["combination"] <= record.seconds["aggregation"]


def test_pncs_compares_its_coordinates_and_sends_the_sketch_besides():
    federation, other = Federation(), Federation()
    strategy = PNCS(FedAvg(**TRAIN_ONLY), combine="sketched-mean")
    federation.run(strategy, 1)
    plain = PNCS(FedAvg(**TRAIN_ONLY))
    other.run(plain, 1)
    assert strategy.rule.sketch == plain.rule.sketch == "coordinates:5%@int8"
    assert strategy.history[0].chosen == plain.history[0].chosen
    assert strategy.history[0].mean_similarity == plain.history[0].mean_similarity
    assert strategy.history[0].bytes_up["pre-round"] > plain.history[0].bytes_up["pre-round"]


def test_those_that_rest_are_asked_for_the_mean_and_the_rule_does_not_hear_of_them():
    federation, heard = Federation(fails=lambda client, number: number == 3 and client == 1), []

    class Listening(PNCSRule):
        def select(self, state, now, summaries):
            heard.append((now.asked, list(summaries), now.available))
            return super().select(state, now, summaries)

    combine = SketchedFit(sketch="layers", bound=math.inf)
    strategy = SelectionStrategy(
        FedAvg(**TRAIN_ONLY), Listening(2), queue_length=4, combine=combine
    )
    federation.run(strategy, 8)
    reference, known = Reference(100), {}
    for record, (asked, summaries, available) in zip(strategy.history, heard, strict=True):
        free = [c for c in record.clients if c not in (*record.cooling, *record.backing_off)]
        assert sorted(asked) == sorted(summaries) == sorted(available) == sorted(free)
        assert set(record.asked) == set(record.clients) - set(record.backing_off)
        assert set(record.chosen) <= set(free)
        updates = {c: federation.update(int(c), record.round) for c in record.asked}
        known |= {c: examples(int(c), record.round) for c in record.delivered}
        there = [c for c in record.asked if c in {*record.delivered} or c not in record.chosen]
        w, sent = shares(there, {}, known), {c: updates[c] for c in there}
        close(federation.change(record.round), reference.combine(sent, w, record.delivered))
    assert any(record.cooling for record in strategy.history)


def test_those_that_rest_send_the_sketch_of_the_combination_alone():
    asked: dict[int, dict[str, str]] = {}

    def listen(message, context, call_next):
        marker = message.content.config_records.get("pncs", {})
        if marker.get("phase") == "summarize":
            of_round = asked.setdefault(int(marker["round"]), {})
            of_round[str(context.node_config["partition-id"])] = marker
        return call_next(message, context)

    strategy = PNCS(FedAvg(), queue_length=4, combine="sketched-mean")
    run(listen, strategy=strategy, clients=6, rounds=5)
    assert [record.pre_round for record in strategy.history] == ["own", *["ahead"] * 4]
    for record in strategy.history:
        assert {c for c, m in asked[record.round].items() if m.get("whole")} == {*record.cooling}
        for client, marker in asked[record.round].items():
            both = ("coordinates:100@int8", "count:256")
            resting = client in record.cooling
            assert marker["sketch"] == (both[1] if resting else both[0])
            assert marker.get("besides") == (None if resting else both[1])
        assert sorted(record.answered) == sorted(record.asked) == record.clients
    assert strategy.history[-1].cooling


@pytest.mark.parametrize("rule", [SketchedMean, GradientMemory, PNCS])
@pytest.mark.parametrize("queue", [0, 2, 4])  # 2 or 4 of 6 are free then, no more than are asked
def test_a_rule_that_asks_some_has_only_these_asked(rule, queue):
    strategy = rule(FedAvg(**TRAIN_ONLY), queue_length=queue, candidates=4, combine="sketched-mean")
    Federation().run(strategy, 6)
    free = [6 - len(record.cooling) for record in strategy.history]
    most = [min(4, size) if rule is PNCS else 4 for size in free]
    assert [len(record.asked) for record in strategy.history] == most
    assert min(free) == 6 - queue


def test_without_a_combination_that_fits_those_that_rest_are_not_asked():
    strategy = Federation().run(PNCS(FedAvg(**TRAIN_ONLY), queue_length=4), 4)
    assert [len(record.asked) for record in strategy.history] == [6, 4, 2, 2]


# --- who lies -------------------------------------------------------------------------------------


def lie(change):
    def answer(message, reply):
        if SUMMARY not in reply.content.array_records:
            return reply
        sketch = reply.content[SUMMARY]["*"].numpy()
        content = reply.content.copy()
        content[SUMMARY] = ArrayRecord({"*": Array(np.asarray(change(sketch), np.float32))})
        return type(reply)(content, reply_to=message)

    return culprit_sends("summarize", answer)


def run(*mods, rounds=8, clients=5, strategy=None, **options):
    strategy = strategy or SketchedMean(FedAvg(**TRAIN_ONLY), **options)
    models = []
    mods = mods if any(isinstance(mod, SummaryMod) for mod in mods) else (*mods, summary_mod)
    app = numpy_app.make_app(*mods)
    strategy.start(
        InProcessGrid(app, clients),
        numpy_app.initial_arrays(),
        num_rounds=rounds,
        evaluate_fn=lambda number, arrays: models.append(arrays),
    )
    return strategy, models


LIES = {
    "other sign": lambda s: -s,
    "huge": lambda s: s * 0 + 1e30,
    "longer": lambda s: s * 100,
    "zeros": lambda s: s * 0,
}


@pytest.mark.parametrize("change", LIES.values(), ids=LIES)
def test_a_liar_is_found_by_default_and_its_sketch_is_in_no_mean_from_then_on(change):
    strategy, models = run(lie(change))
    caught = [r.round for r in strategy.history if r.rejected]
    if not change(np.ones(1)).any():  # is chosen for nothing
        assert not caught
        return
    assert caught == [next(r.round for r in strategy.history if "1" in r.chosen)]
    assert "not that of its update" in strategy.history[caught[0] - 1].rejected["1"]
    assert all("1" not in r.clients for r in strategy.history[caught[0] :])
    for array in models[-1].values():
        assert np.abs(array.numpy()).max() < 10


def test_a_lie_that_is_found_counts_neither_in_its_round_nor_in_what_is_left():
    strategy, models = run(lie(lambda s: -s), rounds=1, num_selected=5, sketch="layers")
    assert strategy.history[0].delivered == ["0", "2", "3", "4"]
    for name, array in models[1].items():
        w = np.array([1, 3, 4, 5]) / 13
        expected = np.tensordot(w, [numpy_app.target(k, name) / 2 for k in (0, 2, 3, 4)], 1)
        np.testing.assert_allclose(array.numpy(), expected, rtol=1e-5)
    memory = strategy.state()["combination"]["memory"]
    assert np.abs(memory["left"]).max() < 1e-6
    assert list(memory["last"]) == ["0", "2", "3", "4"]


def test_without_the_check_a_lie_weighs_three_median_norms_at_most():
    seen = []

    class Watching(SketchedFit):
        def fit(self, now, sketches):
            fit = super().fit(now, sketches)
            seen.append((fit.target, now.shares, dict(sketches)))
            return fit

    run(lie(lambda s: s * 0 + 1e30), rounds=1, combine=Watching(), verify_sketches=False)
    target, weights, sketches = seen[0]
    norms = {c: np.linalg.norm(np.asarray(s, "f8")) for c, s in sketches.items()}
    honest = sum(weights[c] * s for c, s in sketches.items() if c != "1")
    moved = np.linalg.norm(target - honest)
    assert moved == pytest.approx(weights["1"] * 3 * np.median(list(norms.values())), rel=1e-6)


def test_noise_is_refused_with_what_to_do():
    noisy = SummaryMod(noise=SketchNoise(1.0, 1.0, secret=2))
    strategy, _ = run(noisy, rounds=1, clients=4)
    reasons = strategy.history[0].rejected
    assert sorted(reasons) == strategy.history[0].chosen
    assert all("use verify_sketches=False" in reason for reason in reasons.values())
    strategy, _ = run(noisy, rounds=4, clients=4, verify_sketches=False)
    assert all(len(r.delivered) == 2 and not r.rejected for r in strategy.history)


def test_a_large_update_with_an_honest_sketch_is_bounded_and_the_run_goes_on():
    def huge(message, context, call_next):
        reply = call_next(message, context)
        client = context.node_config["partition-id"]
        if client == 1 and reply.has_content() and "arrays" in reply.content:
            arrays = reply.content["arrays"]
            larger = {n: Array(a.numpy() + np.float32(1e18)) for n, a in arrays.items()}
            reply.content["arrays"] = ArrayRecord(larger)
        return reply

    def last(message, context, call_next):  # behind the library's mod: as if the app had made it
        return huge(message, context, call_next)

    app = numpy_app.make_app(summary_mod, last)
    strategy = SketchedMean(FedAvg(**TRAIN_ONLY), clip_norm=10.0)
    result = strategy.start(InProcessGrid(app, 5), numpy_app.initial_arrays(), num_rounds=8)
    assert all(np.isfinite(a.numpy()).all() for a in result.arrays.values())
    for record in strategy.history:
        assert all(abs(c) <= 1 for c in record.combined.get("coefficients", {}).values())
        assert not record.rejected


def test_zero_sketches_and_updates_from_all_change_nothing():
    def idle(message, context, call_next):
        reply = call_next(message, context)
        if reply.has_content() and "arrays" in reply.content:
            reply.content["arrays"] = message.content["arrays"]
        return reply

    app = numpy_app.make_app(summary_mod, idle)
    first = numpy_app.initial_arrays()
    strategy = SketchedMean(FedAvg(**TRAIN_ONLY))
    result = strategy.start(InProcessGrid(app, 5), first, num_rounds=3)
    for name, array in result.arrays.items():
        np.testing.assert_array_equal(array.numpy(), first[name].numpy())
    assert all(r.combined["residual"] == 0 for r in strategy.history)


@pytest.mark.parametrize("weight", [1e9, 1e-9, 1])
@pytest.mark.parametrize("combine", ["fedvarp", "mifa", "sketched-mean", "surrogates:0"])
def test_weights_of_any_size_keep_the_model_finite(weight, combine):
    change = with_update(lambda content: content["metrics"].update({"num-examples": weight}))
    mod = culprit_sends("train", change)
    alone = FedAvg(**TRAIN_ONLY, min_train_nodes=1, min_available_nodes=1)
    strategy = GradientMemory(alone, num_selected=1, combine=combine)
    _, models = run(mod, strategy=strategy, rounds=8)
    assert any("1" in r.delivered for r in strategy.history)
    for array in models[-1].values():
        assert np.isfinite(array.numpy()).all()
        assert np.abs(array.numpy()).max() < 10


@pytest.mark.parametrize("weight", [0.0, -1.0, 5e-324, 9e-10, 1.1e9, math.inf, math.nan])
@pytest.mark.parametrize("combine", ["mean", "fedvarp", "sketched-mean"])
def test_a_weight_that_would_vanish_or_outweigh_is_refused(weight, combine):
    change = with_update(lambda content: content["metrics"].update({"num-examples": weight}))
    strategy = GradientMemory(FedAvg(**TRAIN_ONLY), num_selected=2, combine=combine)
    run(culprit_sends("train", change), strategy=strategy, rounds=4)
    reasons = [r.rejected["1"] for r in strategy.history if r.rejected]
    assert reasons
    assert all(
        "must be above 0 (1e-09 at least) and at most 1e+09, the strategy" in r for r in reasons
    )
    assert not any("1" in r.delivered for r in strategy.history)


@pytest.mark.parametrize("size", [5e-324, 1e308])
@pytest.mark.parametrize("kind", [GradientMemory, SketchedMean])
def test_sizes_by_which_the_base_does_not_weigh_are_believed_within_limits(size, kind):
    change = with_update(lambda content: content["metrics"].update({"num-examples": size}))
    strategy = kind(Unweighted(**TRAIN_ONLY), num_selected=2)
    _, models = run(culprit_sends("train", change), strategy=strategy, rounds=6)
    assert any("1" in r.delivered for r in strategy.history)
    assert "1" not in strategy.state()["num_examples"]
    assert all(np.isfinite(array.numpy()).all() for array in models[-1].values())
