"""Updates of clients that were drawn in proportion to their weight, which must not count twice."""

from dataclasses import replace

import numpy as np
import pytest
from coming_and_going import Federation, Unweighted, examples, shares
from draws import all_draws, chances_by_bisection
from flwr.app import MetricRecord
from flwr.serverapp.strategy import FedAdam, FedAvg
from rounds import make_round

from pncs_flower.sampling import inclusion_chances
from pncs_flower.strategies import ProportionalSelection
from pncs_flower.strategies.combination import Delivery
from pncs_flower.strategies.combinations import MIFA, Mean, Surrogates

TRAIN_ONLY = {"fraction_evaluate": 0.0}
CLIENTS = tuple("abcde")
WEIGHTS = {
    "unequal": np.array([1, 2, 3, 4, 5]) / 15,
    "one sure": np.array([1, 2, 3, 4, 40]) / 50,
    "equal": np.full(5, 0.2),
}
UPDATES = dict(
    zip(CLIENTS, np.random.default_rng(0).normal(1, 2, (5, 7)).astype("f4"), strict=True)
)


@pytest.mark.parametrize(
    "combination", [Mean(), Surrogates(0), Surrogates(0.5), Surrogates(1)], ids=str
)
@pytest.mark.parametrize("name", WEIGHTS)
def test_over_all_draws_the_change_is_that_of_all_clients(combination, name):
    weights = dict(zip(CLIENTS, WEIGHTS[name].tolist(), strict=True))
    now = replace(make_round(2, CLIENTS, 2), shares=weights)
    if isinstance(combination, Surrogates):
        combination.begin(None)
        before = Delivery(now, {"b": UPDATES["a"], "e": UPDATES["c"]})
        combination.keep(before, combination.combine(before))
    chances, expected, plain = inclusion_chances(weights, 2), np.zeros(7), np.zeros(7)
    for probability, those in all_draws(chances):
        delivery = Delivery(
            now, {c: UPDATES[c] for c in those}, chances={c: chances[c] for c in those}
        )
        expected += probability * combination.combine(delivery).values
        again = Surrogates(0).combine(replace(delivery, chances={}))
        plain += probability * again.values
    mean = sum(w * UPDATES[c] for c, w in weights.items())
    np.testing.assert_allclose(expected, mean, rtol=1e-6, atol=1e-8)
    assert (np.abs(plain - mean).max() > 0.05) == (name != "equal")


def test_none_of_those_below_1_weighs_more_than_another():
    weights = dict(zip(CLIENTS, WEIGHTS["one sure"].tolist(), strict=True))
    now = replace(make_round(1, CLIENTS, 3), shares=weights)
    chances = inclusion_chances(weights, 3)
    given = Delivery(now, {c: UPDATES[c] for c in "ace"}, chances={c: chances[c] for c in "ace"})
    assert given.weights == pytest.approx({"a": 0.1, "c": 0.1, "e": 0.8})
    # Of those that are left, if one does not deliver.
    left = replace(given, updates={c: UPDATES[c] for c in "ae"})
    assert left.weights == pytest.approx({"a": 1 / 9, "e": 8 / 9})


def test_with_the_mean_of_last_updates_chances_do_not_matter():
    now = replace(
        make_round(1, CLIENTS, 2), shares=dict(zip(CLIENTS, WEIGHTS["unequal"], strict=True))
    )
    given = Delivery(now, {c: UPDATES[c] for c in "ae"}, chances={"a": 0.1, "e": 0.7})
    one, other = (MIFA().combine(d).values for d in (given, replace(given, chances={})))
    np.testing.assert_array_equal(one, other)


# --- whole runs, in plain NumPy -------------------------------------------------------------------

BASES = {
    "examples": lambda: FedAvg(**TRAIN_ONLY),
    "own key": lambda: FedAvg(**TRAIN_ONLY, weighted_by_key="own-weight"),
    "none": lambda: Unweighted(**TRAIN_ONLY),
}
BETA = {"mean": 0.0, "surrogates:0": 0.0, "surrogates:0.3": 0.3, "fedvarp": 1.0}
AWAY = {1: {5}, 2: {5}, 3: {2, 5}, 4: {2}}


def weight(kind: str, client: int, number: int) -> float:
    return {"examples": examples(client, number), "own key": 10.5 - client, "none": 1}[kind]


def expected_change(combine, fresh, stored, w, chances):
    if combine == "mifa":
        newest = {k: h for k, h in {**stored, **fresh}.items() if k in w}
        total = sum(w[k] for k in newest)
        return sum(w[k] / total * h for k, h in newest.items())
    total = sum(w[k] / chances[k] for k in fresh)
    q = {k: w[k] / chances[k] / total for k in fresh}
    stale = sum((w.get(k, 0) - q.get(k, 0)) * h for k, h in stored.items())
    return sum(q[k] * u for k, u in fresh.items()) + BETA[combine] * stale


@pytest.mark.parametrize("says", [False, True])
@pytest.mark.parametrize("weighted", BASES)
@pytest.mark.parametrize("combine", [*BETA, "mifa"])
def test_each_round_is_the_formula_with_failures_a_queue_and_unknown_sizes(combine, weighted, says):
    federation = Federation(
        8,
        away=lambda number: AWAY.get(number, ()),
        fails=lambda client, number: (client + 2 * number) % 5 == 0,
        says=says,
    )
    strategy = ProportionalSelection(
        BASES[weighted](), num_selected=3, queue_length=3, combine=combine, seed=4, min_clients=6
    )
    federation.run(strategy, 9)
    stored, known = {}, {}
    said = {str(k): 2 + k for k in range(8)} if says and weighted == "examples" else {}
    for record in strategy.history:
        before = (
            shares(record.clients, said, known)
            if said or known
            else dict.fromkeys(record.clients, 1)
        )
        available = {*record.clients}.difference(record.cooling, record.backing_off)
        chances = chances_by_bisection(before, available, 3)
        fresh = {c: federation.update(int(c), record.round) for c in record.delivered}
        known |= {c: weight(weighted, int(c), record.round) for c in fresh}
        w = shares(record.clients, said, known)
        actual = federation.change(record.round)
        change = expected_change(combine, fresh, stored, w, chances)
        np.testing.assert_allclose(actual, change, rtol=3e-3, atol=3e-3)  # of float16
        exact = np.r_[: len(actual) - 9, len(actual) - 4 : len(actual)]
        np.testing.assert_allclose(actual[exact], change[exact], rtol=2e-6, atol=2e-6)
        stored |= fresh
        for client in set(record.chosen) - set(record.delivered):
            said.pop(client, None)  # the word of one that fails counts for nothing
    history = strategy.history
    assert any(len(r.delivered) < 3 for r in history)
    assert any(r.cooling for r in history)
    assert any(r.backing_off for r in history)
    assert (history[-1].combined == {}) == (combine == "mean")


def test_with_beta_0_nothing_is_stored(tmp_path):
    federation = Federation()
    strategy = ProportionalSelection(
        FedAdam(**TRAIN_ONLY, eta=0.1), combine="surrogates:0", checkpoint=tmp_path
    )
    federation.run(strategy, 3)
    assert [r.combined["stored"] for r in strategy.history] == [0, 0, 0]
    assert strategy.state()["combination"]["memory"] == {"updates": []}
    assert len({c for r in strategy.history for c in r.delivered}) > 1


# --- clients that lie about their size ------------------------------------------------------------

CLAIMS = [1e30, 10**400, float("inf"), float("nan"), -5, 0, 101, 1e-320]


class Claiming(Federation):
    """Client 0 claims another number of examples in each round."""

    claims = CLAIMS

    def train(self, message, context):
        reply = super().train(message, context)
        if context.node_config["partition-id"] == 0:
            number = int(message.content["config"]["server-round"])
            claim = self.claims[number % len(self.claims)]
            reply.content["metrics"] = MetricRecord({"num-examples": claim, "own-weight": 1.0})
        return reply


@pytest.mark.parametrize("combine", ["mean", "fedvarp", "mifa"])
def test_a_claim_above_max_weight_or_of_no_number_is_refused(combine):
    federation = Claiming(5)
    strategy = ProportionalSelection(
        FedAvg(**TRAIN_ONLY), num_selected=3, combine=combine, max_weight=100
    )
    federation.run(strategy, 12)
    assert sum("0" in record.chosen for record in strategy.history) > 1
    assert all("0" not in record.delivered for record in strategy.history)
    assert all(set(record.rejected) <= {"0"} for record in strategy.history)
    assert all(np.isfinite(a.numpy()).all() for m in federation.models for a in m.values())


class Constant(Claiming):
    """Client k has k + 3 examples, and client 0 says 100."""

    claims = (100,)

    def train(self, message, context):
        reply = super().train(message, context)
        if (client := context.node_config["partition-id"]) > 0:
            reply.content["metrics"] = MetricRecord({"num-examples": client + 3, "own-weight": 1.0})
        return reply


def test_a_claim_within_max_weight_weighs_no_more_than_its_share():
    federation = Constant(5)
    strategy = ProportionalSelection(FedAvg(**TRAIN_ONLY), num_selected=3, max_weight=100)
    federation.run(strategy, 12)
    seen, share, compared = set(), 100 / (100 + 4 + 5 + 6 + 7), 0
    for record in strategy.history:
        fresh = {c: federation.update(int(c), record.round) for c in record.delivered}
        if len(seen) == 5:  # all sizes are known
            assert "0" in fresh
            others = [update for client, update in fresh.items() if client != "0"]
            expected = share * fresh["0"] + (1 - share) * np.mean(others, axis=0)
            np.testing.assert_allclose(
                federation.change(record.round), expected, rtol=3e-3, atol=3e-3
            )
            compared += 1
        seen |= {*fresh}
    assert compared > 3
