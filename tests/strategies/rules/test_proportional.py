"""Selection in proportion to weight: how often each is chosen, among whom, and what is refused."""

from collections import Counter
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from apps import numpy_app
from draws import chances_by_bisection
from flwr.app import Array, ArrayRecord
from flwr.serverapp import strategy as flower
from flwr.serverapp.strategy import FedAvg
from rounds import make_round

from pncs_flower.clients import summary_mod
from pncs_flower.simulations.run.in_process import InProcessGrid
from pncs_flower.strategies import ProportionalSelection, SelectionStrategy, UniformSelection
from pncs_flower.strategies.round.selector import Selector
from pncs_flower.strategies.round.weights import Weights
from pncs_flower.strategies.rules import ProportionalRule

CLIENTS = [str(k) for k in range(12)]
SIZES = dict(zip(CLIENTS, [1.0, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 200], strict=True))
EQUAL, ROUNDS = dict.fromkeys(CLIENTS, 5.0), 2000


def selector(sizes, queue_length=0, num_selected=3) -> Selector:
    made = Selector(ProportionalRule(num_selected), queue_length, seed=1, weights=Weights(FedAvg()))
    made.learn_sizes(sizes)
    return made


def choices(made: Selector, rounds: int, failing=()) -> list[tuple[tuple[str, ...], ...]]:
    """Return who was available and who was chosen in each round."""
    found = []
    for number in range(1, rounds + 1):
        plan = made.plan(number, CLIENTS)
        choice = made.choose(plan, {})
        found.append((plan.now.available, choice.clients))
        made.observe(plan, choice.clients, {c: {} for c in choice.clients if c not in failing})
    return found


@pytest.mark.minutes
@pytest.mark.parametrize("sizes", [SIZES, EQUAL], ids=["unequal", "equal"])
@pytest.mark.parametrize("queue_length", [0, 6])
def test_each_is_chosen_as_often_as_its_weight_among_those_available_says(sizes, queue_length):
    expected, variance, chosen = Counter(), Counter(), Counter()
    chances = cache(lambda available: chances_by_bisection(sizes, available, 3))
    for available, those in choices(selector(sizes, queue_length), ROUNDS):
        assert len(available) == 12 or queue_length
        assert len(those) == 3
        chosen.update(those)
        for client, chance in chances(available).items():
            expected[client] += chance
            variance[client] += chance * (1 - chance)
    for client in CLIENTS:
        assert abs(chosen[client] - expected[client]) <= 4.5 * variance[client] ** 0.5 + 1e-6
    if sizes is SIZES and not queue_length:
        assert chosen["11"] == ROUNDS > 8 * chosen["0"]


def test_the_choice_says_the_chances_of_those_chosen():
    now = make_round(1, CLIENTS, 3)
    total = sum(SIZES.values())
    now = replace(now, shares={client: size / total for client, size in SIZES.items()})
    choice = ProportionalRule(3).select({}, now, {})
    assert len(choice.clients) == 3
    expected = chances_by_bisection(SIZES, CLIENTS, 3)
    assert choice.chances == pytest.approx({c: expected[c] for c in choice.clients}, rel=1e-9)


def test_of_no_more_than_are_wanted_all_are_chosen_and_nothing_is_drawn():
    for number in (1, 2, 3):
        choice = ProportionalRule(3).select({}, make_round(1, CLIENTS[:number], number), {})
        assert choice.clients == tuple(CLIENTS[:number])
        assert choice.chances == {}


def test_without_sizes_all_are_as_likely():
    chosen = Counter(c for _, those in choices(selector({}), ROUNDS) for c in those)
    deviation = (ROUNDS * 0.25 * 0.75) ** 0.5
    assert all(abs(chosen[c] - ROUNDS / 4) <= 4.5 * deviation for c in CLIENTS)


def test_one_of_unknown_size_is_as_likely_as_one_of_the_mean():
    known = {"0": 1.0, "1": 5.0}  # the mean is 3, so that 12 clients have 36, and 4 are chosen
    chosen = Counter(c for _, t in choices(selector(known, num_selected=4), ROUNDS) for c in t)
    for client, chance in {"0": 1 / 9, "1": 5 / 9, "2": 1 / 3, "11": 1 / 3}.items():
        deviation = (ROUNDS * chance * (1 - chance)) ** 0.5
        assert abs(chosen[client] - ROUNDS * chance) <= 4.5 * deviation


def test_other_seeds_and_rounds_draw_others_and_the_order_does_not_matter():
    shares = dict.fromkeys(CLIENTS, 1 / 12)
    now = replace(make_round(1, CLIENTS, 3), shares=shares)
    rule = ProportionalRule(3)
    drawn = {
        rule.select({}, replace(now, number=n, seed=s), {}).clients for n in (1, 2) for s in (0, 1)
    }
    assert len(drawn) == 4
    assert rule.select({}, now, {}) == rule.select({}, now, {})


# --- what takes no mean ---------------------------------------------------------------------------

NO_MEAN = {
    "Krum": lambda: flower.Krum(),
    "FedMedian": lambda: flower.FedMedian(),
    "QFedAvg": lambda: flower.QFedAvg(client_learning_rate=0.1),
    "privacy": lambda: flower.DifferentialPrivacyServerSideFixedClipping(FedAvg(), 0.1, 1.0, 2),
}


def start(strategy, clients=5, arrays=None, rounds=3):
    grid = InProcessGrid(numpy_app.make_app(summary_mod), clients)
    strategy.start(grid, arrays or numpy_app.initial_arrays(), num_rounds=rounds)
    return strategy


@pytest.mark.parametrize("name", NO_MEAN)
def test_a_base_that_takes_no_mean_is_refused_when_the_strategy_is_made(name):
    with pytest.raises(ValueError, match=r"the rule draws some .* more often.*a rule that does no"):
        ProportionalSelection(NO_MEAN[name](), num_selected=2)


def test_so_is_a_model_without_floating_point():
    arrays = ArrayRecord({"trees": Array(np.zeros(4, np.int64))})
    strategy = ProportionalSelection(FedAvg(), num_selected=2)
    with pytest.raises(ValueError, match=r"the rule draws .* no floating-point .*a rule that does"):
        start(strategy, arrays=arrays)
    assert not strategy.history[0].bytes_down.get("training")


def test_where_all_are_chosen_it_is_the_base_strategy_alone():
    models = []
    for kind in (ProportionalSelection, UniformSelection):
        base = flower.FedAvg(fraction_evaluate=0.0)
        models.append(start(kind(base, num_selected=5)))
    assert [r.delivered for r in models[0].history] == [r.delivered for r in models[1].history]


def test_the_rule_alone_in_any_strategy_weighs_as_its_own_does():
    one, other = (
        start(strategy, rounds=4)
        for strategy in (
            ProportionalSelection(FedAvg(fraction_evaluate=0.0), seed=3),
            SelectionStrategy(FedAvg(fraction_evaluate=0.0), ProportionalRule(), seed=3),
        )
    )
    assert [r.chosen for r in one.history] == [r.chosen for r in other.history]
    assert one.state()["combination"] == other.state()["combination"]
    assert one.state()["combination"]["weights"]
