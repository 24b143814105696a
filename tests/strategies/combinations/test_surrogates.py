"""Stale updates that stand in for others, against their formulas in plain NumPy."""

import numpy as np
import pytest
from apps import kinds_app
from coming_and_going import COVERED, Federation, Unweighted, examples, shares
from flwr.serverapp.strategy import FedAvg

from pncs_flower.strategies import (
    PNCS,
    GradientMemory,
    ProportionalSelection,
    RoundRobin,
    UniformSelection,
)

ROUNDS, CLIENTS = 8, 6
TRAIN_ONLY = {"fraction_evaluate": 0.0}
WEIGHTED = {
    "examples": lambda: FedAvg(**TRAIN_ONLY),
    "own key": lambda: FedAvg(**TRAIN_ONLY, weighted_by_key="own-weight"),
    "none": lambda: Unweighted(**TRAIN_ONLY),
}
# Client 2 is away in rounds 3 and 4, client 5 is new in round 4; one in five deliveries fails.
AWAY = {1: {5}, 2: {5}, 3: {2, 5}, 4: {2}}


def weight(kind: str, client: int, number: int) -> float:
    return {"examples": examples(client, number), "own key": 10.5 - client, "none": 1}[kind]


def surrogates(beta):
    def change(fresh, stored, w):
        total = sum(w[k] for k in fresh)
        q = {k: w[k] / total for k in fresh}
        stale = sum((w.get(k, 0) - q.get(k, 0)) * h for k, h in stored.items())
        return sum(q[k] * u for k, u in fresh.items()) + beta * stale

    return change


def mifa(fresh, stored, w):
    newest = {k: h for k, h in {**stored, **fresh}.items() if k in w}
    total = sum(w[k] for k in newest)
    return sum(w[k] / total * h for k, h in newest.items())


REFERENCES = {
    "surrogates:0": surrogates(0),
    "surrogates:0.3": surrogates(0.3),
    "fedvarp": surrogates(1),
    "surrogates:1": surrogates(1),
    "mifa": mifa,
}


def close(actual: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(actual, expected, rtol=3e-3, atol=3e-3)  # of float16
    half = slice(-9, -4)  # half.weight
    exact = np.ones(len(actual), bool)
    exact[half] = False
    np.testing.assert_allclose(actual[exact], expected[exact], rtol=2e-6, atol=2e-6)


@pytest.mark.minutes
@pytest.mark.parametrize("says", [False, True])
@pytest.mark.parametrize("weighted", WEIGHTED)
@pytest.mark.parametrize("combine", REFERENCES)
def test_each_round_is_the_formula_of_the_paper(combine, weighted, says):
    federation = Federation(
        CLIENTS,
        away=lambda number: AWAY.get(number, ()),
        fails=lambda client, number: (client + 2 * number) % 5 == 0,
        says=says,
    )
    strategy = UniformSelection(
        WEIGHTED[weighted](), num_selected=3, combine=combine, seed=4, min_clients=4
    )
    federation.run(strategy, ROUNDS)
    stored, known = {}, {}
    said = {str(k): 2 + k for k in range(CLIENTS)} if says and weighted == "examples" else {}
    for record in strategy.history:
        fresh = {c: federation.update(int(c), record.round) for c in record.delivered}
        assert fresh
        known |= {c: weight(weighted, int(c), record.round) for c in fresh}
        expected = REFERENCES[combine](fresh, stored, shares(record.clients, said, known))
        close(federation.change(record.round), expected)
        stored |= fresh
        for client in set(record.chosen) - set(record.delivered):
            said.pop(client, None)  # the word of one that fails counts for nothing
    assert any(len(r.delivered) < 3 for r in strategy.history)
    assert {len(r.clients) for r in strategy.history} == {4, 5, 6}
    kinds_app.assert_same_kinds(federation.models[-1])


@pytest.mark.parametrize(
    "rule", [UniformSelection, ProportionalSelection, RoundRobin, GradientMemory, PNCS]
)
@pytest.mark.parametrize("base", WEIGHTED)
def test_fedavg_is_surrogates_of_weight_0_to_rounding(rule, base):
    plain, same = Federation(), Federation()
    for federation, combine in ((plain, "mean"), (same, "surrogates:0")):
        federation.run(rule(WEIGHTED[base](), num_selected=3, combine=combine, seed=2), 5)
    for one, other in zip(plain.models, same.models, strict=True):
        for name in one:
            tolerance = 2e-3 if name == "half.weight" else 1e-6
            np.testing.assert_allclose(
                one[name].numpy(),
                other[name].numpy(),
                rtol=tolerance,
                atol=tolerance,
                err_msg=name,
            )


@pytest.mark.parametrize("combine", ["fedvarp", "mifa", "sketched-mean"])
def test_what_is_not_covered_is_averaged_over_the_delivered(combine):
    federation = Federation()
    strategy = GradientMemory(FedAvg(**TRAIN_ONLY), num_selected=2, combine=combine)
    federation.run(strategy, 4)
    for record in strategy.history:
        clients = [int(c) for c in record.delivered]
        weights = np.array([examples(c, record.round) for c in clients], "f8")
        weights /= weights.sum()
        before, after = federation.models[record.round - 1 : record.round + 1]
        for name in ("norm.running_mean", "norm.running_var"):
            w = before[name].numpy()
            moved = [w + np.float32(0.5) * (np.float32(c + 1) - w) for c in clients]
            expected = np.tensordot(weights, np.array(moved, "f8"), 1)
            np.testing.assert_allclose(after[name].numpy(), expected, rtol=1e-6)
        count = before["norm.num_batches_tracked"].numpy()
        expected = np.rint(weights @ [count + 3 + c for c in clients])
        assert after["norm.num_batches_tracked"].numpy() == expected
        for name in kinds_app.UNCHANGED:
            np.testing.assert_array_equal(after[name].numpy(), kinds_app.ARRAYS[name])
    assert set(COVERED).isdisjoint(("norm.running_mean", "norm.running_var"))


@pytest.mark.parametrize(
    ("combine", "most"), [("fedvarp:store=2", 2), ("mifa:3", 3), ("surrogates:0.5,store=0", 0)]
)
def test_the_oldest_beyond_the_store_count_no_more(combine, most):
    federation = Federation()
    strategy = RoundRobin(FedAvg(**TRAIN_ONLY), num_selected=2, combine=combine)
    federation.run(strategy, 5)
    change = mifa if "mifa" in combine else surrogates(0.5 if "0.5" in combine else 1)
    stored, known = {}, {}
    for record in strategy.history:
        fresh = {c: federation.update(int(c), record.round) for c in record.delivered}
        known |= {c: weight("examples", int(c), record.round) for c in fresh}
        close(
            federation.change(record.round),
            change(fresh, stored, shares(record.clients, {}, known)),
        )
        assert record.combined["stored"] == len(stored)
        for client in fresh:
            stored.pop(client, None)
        stored |= fresh
        stored = dict([*stored.items()][len(stored) - min(most, len(stored)) :])
    assert strategy.history[-1].combined["stored"] == most


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_float16_in_the_store_is_near(dtype):
    federation = Federation()
    strategy = RoundRobin(FedAvg(**TRAIN_ONLY), num_selected=2, combine=f"fedvarp:dtype={dtype}")
    federation.run(strategy, 6)
    stored, known = {}, {}
    for record in strategy.history:
        fresh = {c: federation.update(int(c), record.round) for c in record.delivered}
        known |= {c: weight("examples", int(c), record.round) for c in fresh}
        expected = surrogates(1)(fresh, stored, shares(record.clients, {}, known))
        actual = federation.change(record.round)
        np.testing.assert_allclose(actual, expected, rtol=3e-3, atol=4e-3)
        stored |= fresh
    size = {"float32": 4, "float16": 2}[dtype] * len(actual)
    assert strategy.history[-1].combined["stored-bytes"] == CLIENTS * size
