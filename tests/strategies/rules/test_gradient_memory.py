"""GradientMemory: what is left out is remembered, and made up for."""

from itertools import combinations

import numpy as np
import pytest
from apps import numpy_app
from flwr.serverapp.strategy import FedAvg

from pncs_flower.clients import summary_mod
from pncs_flower.simulations.run.in_process import InProcessGrid
from pncs_flower.strategies import GradientMemory
from pncs_flower.strategies.round.selector import Selector
from pncs_flower.strategies.rules.gradient_memory import GradientMemoryRule
from pncs_flower.strategies.rules.uniform import UniformRule

LAYERS = "layers"


def play(selector, rounds, gradients, deliver=lambda clients, number: clients, sizes=None):
    """Play rounds on constant gradients; return who was chosen, and the applied means."""
    chosen, applied = [], []
    sizes = sizes or dict.fromkeys(gradients, 1.0)
    selector.learn_sizes(sizes)
    for number in rounds:
        plan = selector.plan(number, list(gradients))
        answers = {
            client: {"fc": np.asarray(gradients[client], np.float32)} for client in plan.candidates
        }
        choice = selector.choose(plan, answers)
        delivered = deliver(choice.clients, number)
        metrics = {client: {"num-examples": sizes[client]} for client in delivered}
        selector.observe(plan, choice.clients, metrics)
        chosen.append(choice.clients)
        weights = np.array([sizes[client] for client in delivered])
        vectors = np.array([gradients[client] for client in delivered])
        applied.append(weights @ vectors / weights.sum())
    return chosen, np.array(applied)


def population(clients: int = 20, size: int = 30, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {str(k): rng.normal(size=size) + 1 for k in range(clients)}


def test_first_choice_is_the_pair_whose_mean_is_nearest_the_mean_of_all():
    gradients = {"0": [4.0, 0.0], "1": [0.0, 4.0], "2": [0.0, 0.0], "3": [0.0, 0.0]}
    # The mean is (1, 1); of the pairs, (0, 1) has mean (2, 2), (0, 2) has (2, 0), ...: the least
    # distance is sqrt(2), of all pairs but (0, 1)'s sqrt(2) too. Ties go to the first.
    chosen, _ = play(Selector(GradientMemoryRule(sketch=LAYERS), 0, 0), range(1, 2), gradients)
    assert chosen == [("0", "1")]


def test_second_choice_makes_up_for_what_the_first_left_out():
    gradients = {"0": [3.0, 0.0], "1": [0.0, 3.0], "2": [0.0, 0.0]}
    rule = GradientMemoryRule(num_selected=1, sketch=LAYERS)
    # Mean (1, 1). Round 1: |(1,1)-g|: 0: (-2,1), 1: (1,-2), 2: (1,1) is least. R = (1, 1).
    # Round 2: R + mean = (2, 2): 0: (-1,2), 1: (2,-1), tie, so 0. R = (-1, 2).
    # Round 3: (0, 3): 1 leaves nothing. R = 0.
    chosen, _ = play(Selector(rule, 0, 0), range(1, 5), gradients)
    assert chosen == [("2",), ("0",), ("1",), ("2",)]


@pytest.mark.parametrize("sizes", [None, {str(k): 1.0 + k for k in range(7)}], ids=["equal", "n_k"])
def test_every_choice_equals_an_independent_search_over_all_subsets(sizes):
    gradients = population(7, 5, seed=1)
    rule = GradientMemoryRule(num_selected=3, sketch=LAYERS)
    chosen, _ = play(Selector(rule, 0, 0), range(1, 9), gradients, sizes=sizes)
    weight = sizes or dict.fromkeys(gradients, 1.0)

    def mean(clients):
        total = sum(weight[c] for c in clients)
        return sum(weight[c] * np.float32(gradients[c]).astype(float) for c in clients) / total

    residual = np.zeros(5)
    for clients in chosen:
        wanted = residual + mean(list(gradients))
        best = min(combinations(gradients, 3), key=lambda s: np.sum((wanted - mean(s)) ** 2))
        assert clients == best
        residual = wanted - mean(best)


def test_mean_of_applied_updates_approaches_the_mean_of_all_as_one_over_t():
    gradients = population()
    target = np.mean(list(gradients.values()), axis=0)
    rounds = 400

    def error(rule, seed=0):
        _, applied = play(Selector(rule, 0, seed), range(1, rounds + 1), gradients)
        steps = np.arange(1, rounds + 1)
        return np.linalg.norm(np.cumsum(applied, axis=0) / steps[:, None] - target, axis=1)

    def slope(errors):
        steps = np.arange(20, rounds)
        return np.polyfit(np.log(steps), np.log(errors[steps]), 1)[0]

    memory = slope(error(GradientMemoryRule(num_selected=3, sketch=LAYERS)))
    uniform = np.mean([slope(error(UniformRule(3), seed)) for seed in range(20)])
    assert memory == pytest.approx(-1, abs=0.15)
    assert uniform == pytest.approx(-0.5, abs=0.15)


def test_a_count_sketch_serves_as_well_end_to_end():
    def distance(sketch):
        grid = InProcessGrid(numpy_app.make_app(summary_mod), 10)
        strategy = GradientMemory(
            FedAvg(fraction_evaluate=0.0), num_selected=2, sketch=sketch, seed=1
        )
        strategy.start(grid, numpy_app.initial_arrays(), num_rounds=10)
        assert all(len(record.delivered) == 2 for record in strategy.history)
        return [record.chosen for record in strategy.history]

    # Layers of 15 and 8 values fit into 256 numbers, so nothing is lost.
    assert distance("count:256") == distance("layers")


def test_what_a_client_fails_to_deliver_stays_in_the_residual():
    gradients = {"0": [3.0, 0.0], "1": [0.0, 3.0], "2": [0.0, 0.0]}
    rule = GradientMemoryRule(num_selected=1, sketch=LAYERS)

    def first_try_of_0_fails(clients, number):
        return () if (clients, number) == (("0",), 2) else clients

    selector = Selector(rule, 0, 0)
    chosen = []
    for number in range(1, 4):
        plan = selector.plan(number, list(gradients))
        answers = {c: {"fc": np.asarray(g, np.float32)} for c, g in gradients.items()}
        choice = selector.choose(plan, answers)
        delivered = first_try_of_0_fails(choice.clients, number)
        selector.observe(plan, choice.clients, {c: {} for c in delivered})
        chosen.append(choice.clients)
        if number == 2:
            np.testing.assert_allclose(selector.state()["rule"]["residual"], (2, 2))
    # Round 3 wants (3, 3): 0 and 1 leave equally much, and 0 has had its turn.
    assert chosen == [("2",), ("0",), ("1",)]


def test_forgetting_scales_the_residual():
    gradients = {"0": [3.0, 0.0], "1": [0.0, 3.0], "2": [0.0, 0.0]}
    rule = GradientMemoryRule(num_selected=1, sketch=LAYERS, forgetting=0.1)
    # R stays near the one mean (1, 1), to which 2 is nearest for ever.
    chosen, _ = play(Selector(rule, 0, 0), range(1, 6), gradients)
    assert chosen == [("2",)] * 5


def test_normalized_sketches_make_the_scale_of_a_client_irrelevant():
    gradients = population(8, 6)
    scaled = {c: g * (100.0 if c == "3" else 1.0) for c, g in gradients.items()}
    rule = GradientMemoryRule(num_selected=2, sketch=LAYERS, normalize=True)
    plain, loud = (play(Selector(rule, 0, 0), range(1, 6), g)[0] for g in (gradients, scaled))
    assert plain == loud


def test_with_candidates_each_is_asked_in_turn_and_the_unasked_can_be_chosen():
    gradients = population(9, 6)
    rule = GradientMemoryRule(num_selected=2, sketch=LAYERS, num_candidates=3)
    selector = Selector(rule, 0, 0)
    asked, unasked_chosen = [], 0
    for number in range(1, 10):
        plan = selector.plan(number, list(gradients))
        answers = {c: {"fc": np.asarray(gradients[c], np.float32)} for c in plan.candidates}
        choice = selector.choose(plan, answers)
        selector.observe(plan, choice.clients, {c: {} for c in choice.clients})
        asked.append(plan.candidates)
        unasked_chosen += len(set(choice.clients) - set(plan.candidates))
    for start in (0, 3, 6):
        assert sorted(c for clients in asked[start : start + 3] for c in clients) == sorted(
            gradients
        )
    assert unasked_chosen > 0


def test_unasked_client_that_is_chosen_trains_and_delivers():
    grid = InProcessGrid(numpy_app.make_app(summary_mod), 10)
    strategy = GradientMemory(FedAvg(fraction_evaluate=0.0), num_selected=3, candidates=4)
    strategy.start(grid, numpy_app.initial_arrays(), num_rounds=8)
    assert all(len(record.asked) == 4 for record in strategy.history)
    assert all(len(record.delivered) == 3 for record in strategy.history)
    assert any(set(record.chosen) - set(record.asked) for record in strategy.history)


def test_client_that_does_not_answer_is_not_chosen_but_still_counts():
    gradients = {"0": [3.0, 0.0], "1": [0.0, 3.0], "2": [0.0, 0.0]}
    rule = GradientMemoryRule(num_selected=1, sketch=LAYERS)
    selector = Selector(rule, 0, 0)
    play(selector, range(1, 2), gradients)  # R = (1, 1)
    plan = selector.plan(2, list(gradients))
    answers = {c: {"fc": np.asarray(gradients[c], np.float32)} for c in ("1", "2")}
    # (2, 2) is wanted: 0 would win the tie with 1, but did not answer.
    assert selector.choose(plan, answers).clients == ("1",)


def test_client_that_leaves_no_longer_counts():
    gradients = {"0": [9.0, 0.0], "1": [0.0, 3.0], "2": [0.0, 3.0], "3": [0.0, 2.9]}
    selector = Selector(GradientMemoryRule(num_selected=1, sketch=LAYERS), 0, 0)
    rest = {client: gradients[client] for client in ("1", "2", "3")}
    play(selector, range(1, 2), gradients)
    residual = selector.state()["rule"]["residual"].copy()
    plan = selector.plan(2, list(rest))
    answers = {c: {"fc": np.asarray(g, np.float32)} for c, g in rest.items()}
    chosen = selector.choose(plan, answers).clients
    selector.observe(plan, chosen, {})
    wanted = selector.state()["rule"]["residual"]
    np.testing.assert_allclose(wanted - residual, np.mean(list(rest.values()), axis=0), rtol=1e-6)


def test_starting_from_saved_state_at_round_three_makes_the_fourth_choice():
    gradients = population(8, 6)
    rule = GradientMemoryRule(num_selected=2, num_candidates=4, sketch="layers")
    whole, _ = play(Selector(rule, 2, 7), range(1, 7), gradients)
    before, resumed = Selector(rule, 2, 7), Selector(rule, 2, 7)
    play(before, range(1, 4), gradients)
    resumed.restore(before.state())
    assert play(resumed, range(4, 7), gradients)[0] == whole[3:]


def test_order_of_clients_does_not_matter():
    gradients = population(9, 6)
    rule = GradientMemoryRule(num_selected=3, sketch=LAYERS)
    backwards = dict(reversed(gradients.items()))
    first, second = (play(Selector(rule, 3, 2), range(1, 7), g)[0] for g in (gradients, backwards))
    assert first == second


@pytest.mark.parametrize("clients", [1, 2, 3])
def test_every_client_is_chosen_where_there_are_no_more(clients):
    gradients = population(clients, 4)
    rule = GradientMemoryRule(num_selected=clients, sketch=LAYERS)
    assert play(Selector(rule, 4, 0), range(1, 4), gradients)[0] == [tuple(gradients)] * 3


def test_all_gradients_zero_is_no_obstacle():
    gradients = {str(k): [0.0, 0.0] for k in range(5)}
    rule = GradientMemoryRule(sketch=LAYERS, normalize=True)
    chosen, _ = play(Selector(rule, 0, 0), range(1, 6), gradients)
    assert all(len(set(clients)) == 2 for clients in chosen)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sketch": "coordinates:64"}, "needs a linear one"),
        ({"forgetting": 0.0}, "forgetting is 0.0"),
        ({"forgetting": 1.5}, "forgetting is 1.5"),
        ({"weights": "loss"}, "'examples' or 'uniform'"),
        ({"candidates": 0}, "candidates is 0"),
        ({"summary": "loss"}, "'update' or 'gradient'"),
    ],
)
def test_option_out_of_range(options, message):
    with pytest.raises(ValueError, match=message):
        GradientMemory(FedAvg(), **options)


def test_where_nobody_answers_the_unasked_are_chosen():
    selector = Selector(GradientMemoryRule(num_selected=2, num_candidates=3), 0, seed=0)
    plan = selector.plan(1, [str(k) for k in range(6)])
    chosen = selector.choose(plan, {}).clients
    assert len(chosen) == 2
    assert not set(chosen) & set(plan.candidates)
