"""The rules as pure functions: hand-computed cases, edges, and starting in the middle."""

import numpy as np
import pytest
from apps import numpy_app
from flwr.serverapp.strategy import FedAvg

from pncs_flower.clients import summary_mod
from pncs_flower.simulations.run.in_process import InProcessGrid
from pncs_flower.sketches.kinds import parse_sketch
from pncs_flower.strategies import SelectionStrategy
from pncs_flower.strategies.round.selector import Selector
from pncs_flower.strategies.rule import Choice, SelectionRule
from pncs_flower.strategies.rules.active_fl import ActiveFLRule
from pncs_flower.strategies.rules.divfl import DivFLRule
from pncs_flower.strategies.rules.fedcor import FedCorRule, Schedule
from pncs_flower.strategies.rules.gradient_norm import GradientNormRule
from pncs_flower.strategies.rules.oort import OortRule
from pncs_flower.strategies.rules.pncs import PNCSRule
from pncs_flower.strategies.rules.power_of_choice import PowerOfChoiceRule
from pncs_flower.strategies.rules.proportional import ProportionalRule
from pncs_flower.strategies.rules.round_robin import RoundRobinRule
from pncs_flower.strategies.rules.uniform import UniformRule

# Two axes and their opposites: at any p, opposites have similarity -1 and the others 0.
CROSS = {
    "0": np.array([1.0, 0.0]),
    "1": np.array([0.0, 1.0]),
    "2": np.array([-1.0, 0.0]),
    "3": np.array([0.0, -1.0]),
}
RULES = {
    "PNCS": lambda size: PNCSRule(num_selected=size),
    "uniform": lambda size: UniformRule(num_selected=size),
    "proportional": lambda size: ProportionalRule(num_selected=size),
    "round robin": lambda size: RoundRobinRule(num_selected=size),
    "PNCS, some asked": lambda size: PNCSRule(num_selected=size, num_candidates=size + 1),
    "ActiveFL": lambda size: ActiveFLRule(num_selected=size),
    "ActiveFL, half uniform": lambda size: ActiveFLRule(num_selected=size, uniform_share=0.5),
    "pow-d": lambda size: PowerOfChoiceRule(size, size + 2),
    "rpow-d": lambda size: PowerOfChoiceRule(size, size + 2, "rpow-d"),
    # Two warm-up rounds, and rounds 4, 6, ... are sampled.
    "FedCor": lambda size: FedCorRule(size, Schedule(2, 2, annealing=0.9, discount=0.9)),
    "DivFL": lambda size: DivFLRule(size),
    "DivFL, stochastic": lambda size: DivFLRule(size, stochastic=True),
    "DivFL, stale": lambda size: DivFLRule(size, stale=True),
    "gradient norm": lambda size: GradientNormRule(size),
    "Oort": lambda size: OortRule(size, explored_share=0.5, duration_key="seconds"),
}


def answer(request, vector, number: int) -> dict:
    """Return what a client sends whose loss falls as the rounds go on."""
    if request.kind == "loss":
        return {"loss": np.array([loss(vector, number)]), "num-examples": np.array([3.0])}
    sketch = parse_sketch(request.sketch)
    wire = sketch.encode(np.asarray(vector, np.float32), seed=0, round=number, layer="fc")
    return {"fc": sketch.decode(wire, len(vector))}


def loss(vector, number: int) -> float:
    return float(np.linalg.norm(vector)) / number


def metrics(vector, number: int) -> dict[str, float]:
    return {"train-loss": loss(vector, number), "num-examples": 3.0, "seconds": 4.0 + number}


def play(selector: Selector, rounds: range, vectors=CROSS) -> list[tuple[str, ...]]:
    """Play rounds in which everybody answers and everybody chosen delivers."""
    request = selector.rule.request
    chosen = []
    for number in rounds:
        plan = selector.plan(number, list(vectors))
        # In the order of the vectors: replies come in any.
        asked = [client for client in vectors if client in plan.candidates]
        answers = {client: answer(request, vectors[client], number) for client in asked}
        choice = selector.choose(plan, answers)
        delivered = {client: metrics(vectors[client], number) for client in choice.clients}
        selector.observe(plan, choice.clients, delivered)
        chosen.append(choice.clients)
    return chosen


def test_pncs_takes_opposites_and_then_the_other_pair():
    # All pairs of opposites are equally good; never chosen and smaller keys come first.
    assert play(Selector(PNCSRule(), 2, seed=0), range(1, 5)) == [
        ("0", "2"),
        ("1", "3"),
        ("0", "2"),
        ("1", "3"),
    ]


def test_pncs_without_a_queue_breaks_ties_by_who_waited_longest():
    assert play(Selector(PNCSRule(), 0, seed=0), range(1, 4)) == [
        ("0", "2"),
        ("1", "3"),
        ("0", "2"),
    ]


def test_pncs_of_one_client_is_the_one_least_like_the_others():
    vectors = {"0": [1.0, 0.1], "1": [1.0, 0.0], "2": [-1.0, 0.2]}
    assert play(Selector(PNCSRule(num_selected=1), 0, seed=0), range(1, 2), vectors) == [("2",)]


def test_pncs_averages_over_layers():
    rule = PNCSRule()
    one, other = np.array([1.0, 0.0], np.float32), np.array([0.0, 1.0], np.float32)
    similarity = rule.similarity({"0": {"a": one, "b": one}, "1": {"a": one, "b": other}})
    np.testing.assert_allclose(similarity, [[1, 0.5], [0.5, 1]], atol=1e-12)


def test_pncs_record_names_the_form():
    assert "form='printed'" in str(PNCSRule(form="printed"))


def test_round_robin_gives_everybody_a_turn_before_anybody_a_second():
    chosen = play(Selector(RoundRobinRule(num_selected=2), 0, seed=4), range(1, 7))
    for first, second in zip(chosen[::2], chosen[1::2], strict=True):
        assert sorted(first + second) == ["0", "1", "2", "3"]


def test_round_robin_is_fair_where_the_numbers_do_not_divide():
    rounds = 400
    chosen = play(Selector(RoundRobinRule(num_selected=3), 0, seed=4), range(1, rounds + 1))
    turns = [sum(client in clients for clients in chosen) for client in CROSS]
    assert max(turns) - min(turns) < 0.05 * rounds


def test_round_robin_order_depends_on_the_seed():
    first = {play(Selector(RoundRobinRule(1), 0, seed), range(1, 2))[0] for seed in range(20)}
    assert len(first) == 4


def test_uniform_draws_each_client_equally_often():
    rounds, clients, size = 3000, 5, 2
    vectors = {str(k): [1.0] for k in range(clients)}
    chosen = play(Selector(UniformRule(size), 0, seed=1), range(1, rounds + 1), vectors)
    counts = np.array([sum(str(k) in c for c in chosen) for k in range(clients)])
    expected = rounds * size / clients
    # Chi-squared with 4 degrees of freedom, scaled for draws without replacement; 1% point.
    assert ((counts - expected) ** 2 / expected).sum() / (1 - size / clients) < 13.28


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@pytest.mark.parametrize("clients", [1, 2, 3])
def test_every_client_is_chosen_where_there_are_no_more(rule, clients):
    vectors = {str(k): [1.0, k] for k in range(clients)}
    chosen = play(Selector(rule(clients), 4, seed=0), range(1, 4), vectors)
    assert chosen == [tuple(vectors)] * 3


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@pytest.mark.parametrize("value", [0.0, 1.0], ids=["all zero", "all equal"])
def test_equal_clients_are_no_obstacle(rule, value):
    vectors = {str(k): [value, value] for k in range(5)}
    chosen = play(Selector(rule(2), 0, seed=0), range(1, 6), vectors)
    assert all(len(set(clients)) == 2 for clients in chosen)


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_starting_from_saved_state_at_round_three_makes_the_fourth_choice(rule):
    rng = np.random.default_rng(5)
    vectors = {str(k): rng.normal(size=6) for k in range(8)}
    whole = play(Selector(rule(2), 3, seed=7), range(1, 6), vectors)
    before = Selector(rule(2), 3, seed=7)
    play(before, range(1, 4), vectors)
    resumed = Selector(rule(2), 3, seed=7)
    resumed.restore(before.state())
    assert play(resumed, range(4, 6), vectors) == whole[3:]


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_order_of_clients_and_of_replies_does_not_matter(rule):
    rng = np.random.default_rng(3)
    vectors = {str(k): rng.normal(size=6) for k in range(9)}
    backwards = dict(reversed(vectors.items()))
    selectors = [Selector(rule(3), 3, seed=2) for _ in range(2)]
    assert play(selectors[0], range(1, 6), vectors) == play(selectors[1], range(1, 6), backwards)


def test_chosen_but_not_delivered_does_not_cool_down():
    selector = Selector(RoundRobinRule(2), 4, seed=0)
    plan = selector.plan(1, list(CROSS))
    choice = selector.choose(plan, {})
    selector.observe(plan, choice.clients, {choice.clients[0]: {}})
    assert selector.plan(2, list(CROSS)).cooling == choice.clients[:1]


@pytest.mark.parametrize(
    ("clients", "problem"),
    [(("0",), "must choose 2"), (("0", "9"), "different clients"), (("0", "0"), "2 different")],
)
def test_rule_that_chooses_wrongly_is_named(clients, problem):
    class Wrong(SelectionRule):
        num_selected = 2

        def select(self, state, now, summaries):
            return Choice(clients)

    selector = Selector(Wrong(), 0, seed=0)
    with pytest.raises(ValueError, match=problem):
        selector.choose(selector.plan(1, list(CROSS)), {})


def test_rule_sees_the_metrics_of_the_delivered_updates():
    grid = InProcessGrid(numpy_app.make_app(summary_mod), 3)
    seen = []

    class Watching(UniformRule):
        def observe(self, state, now, delivered):
            seen.append(dict(delivered))
            return state

    SelectionStrategy(FedAvg(fraction_evaluate=0.0), Watching(3)).start(
        grid, numpy_app.initial_arrays(), num_rounds=1
    )
    assert seen == [{str(k): {"num-examples": k + 1.0} for k in range(3)}]
