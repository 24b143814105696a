"""PNCS where not all clients are asked, and where layers weigh differently."""

import numpy as np
import pytest
from rounds import make_round

from pncs_flower.strategies.round.selector import Selector
from pncs_flower.strategies.rules.pncs import PNCSRule

CLIENTS = [str(k) for k in range(7)]


def ask(rule: PNCSRule, rounds: range, seed: int = 0, silent: str = "") -> list[set[str]]:
    """Return who is asked in each round; one client never answers."""
    selector = Selector(rule, 0, seed)
    asked = []
    for number in rounds:
        plan = selector.plan(number, CLIENTS)
        rng = np.random.default_rng(number)
        answers = {c: {"fc": rng.normal(size=4)} for c in plan.candidates if c != silent}
        choice = selector.choose(plan, answers)
        selector.observe(plan, choice.clients, {client: {} for client in choice.clients})
        asked.append(set(plan.candidates))
    return asked


def test_longest_unasked_come_first() -> None:
    first, second, third = ask(PNCSRule(num_candidates=3), range(1, 4))
    assert len(first | second) == 6
    # The seventh comes next, with two of those asked in the first round.
    assert third - first == set(CLIENTS) - first - second


def test_client_that_never_answers_waits_its_turn() -> None:
    asked = ask(PNCSRule(num_candidates=3), range(1, 15), silent="2")
    assert sum("2" in clients for clients in asked) == 6  # 14 rounds of 3 of 7


def test_layer_weights_weigh_the_similarities() -> None:
    one, other = np.array([1.0, 0.0]), np.array([0.0, 1.0])
    rule = PNCSRule(layers=("a", "b"), layer_weights=(("a", 3.0), ("b", 1.0)))
    similarity = rule.similarity({"0": {"a": one, "b": one}, "1": {"a": one, "b": other}})
    np.testing.assert_allclose(similarity, [[1, 0.75], [0.75, 1]], atol=1e-12)


def test_weights_decide_the_choice() -> None:
    # Clients 0 and 1 are opposites in layer a, 0 and 2 in layer b; other pairs are orthogonal.
    one, other = np.array([1.0, 0.0]), np.array([0.0, 1.0])
    summaries = {
        "0": {"a": one, "b": one},
        "1": {"a": -one, "b": other},
        "2": {"a": other, "b": -one},
    }
    for weights, expected in (((2.0, 1.0), ("0", "1")), ((1.0, 2.0), ("0", "2"))):
        rule = PNCSRule(
            layers=("a", "b"), layer_weights=tuple(zip(("a", "b"), weights, strict=True))
        )
        choice = rule.select(rule.initial_state(), make_round(1, "012", 2), summaries)
        assert choice.clients == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_candidates": 1}, "candidates is 1, but 2 of them are chosen"),
        ({"layer_weights": (("a", -1.0),), "layers": ("a",)}, "finite and at least 0"),
        ({"layer_weights": (("a", 0.0),), "layers": ("a",)}, "must not be all 0"),
        ({"layer_weights": {"a": 1e308, "b": 1e308}, "layers": ("a", "b")}, "infinite in sum"),
        ({"layer_weights": {"a": float("nan")}, "layers": ("a",)}, "finite and at least 0"),
        (
            {"layer_weights": (("a", 1.0),), "layers": ("b",)},
            "names the layers a, but layers are b",
        ),
        ({"layer_weights": (("a", 1.0),)}, "layers are not given"),
    ],
)
def test_wrong_option_is_refused(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PNCSRule(**options)
