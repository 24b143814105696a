"""FedCor: when it learns, what it chooses, and whom a federation of two groups gets."""

import numpy as np
import pytest
from flwr.serverapp.strategy import FedAvg
from hypothesis import given
from hypothesis import strategies as st
from rounds import make_round

from pncs_flower.strategies import FedCor
from pncs_flower.strategies.round.selector import Selector
from pncs_flower.strategies.rules.fedcor import SCHEDULES, FedCorRule, Schedule, greedy
from pncs_flower.strategies.rules.uniform import UniformRule

QUICK = Schedule(warm_up=3, interval=4, annealing=0.9, discount=0.5)
EIGHT = [str(k) for k in range(8)]


def told(losses: np.ndarray) -> dict:
    return {
        str(k): {"loss": np.array([loss]), "num-examples": np.array([1.0])}
        for k, loss in enumerate(losses)
    }


class Federation:
    """Rounds in which the losses do what a function says."""

    def __init__(self, rule: FedCorRule, change, clients: list[str] = EIGHT, seed: int = 0):
        self.selector = Selector(rule, 0, seed)
        self.clients, self.change = clients, change
        self.losses = np.full(len(clients), 5.0)
        self.number = 0
        self.asked: list[int] = []

    def play(self) -> tuple[str, ...]:
        self.number += 1
        plan = self.selector.plan(self.number, self.clients)
        self.asked.append(len(plan.candidates))
        choice = self.selector.choose(plan, told(self.losses) if plan.candidates else {})
        self.selector.observe(plan, choice.clients, {client: {} for client in choice.clients})
        self.losses = self.losses + self.change(self.number)
        return choice.clients

    @property
    def state(self) -> dict:
        return self.selector.state()["rule"]


def noise(number: int) -> np.ndarray:
    return np.random.default_rng(number).normal(scale=0.1, size=8)


def test_losses_are_asked_for_around_the_sampled_rounds_only() -> None:
    federation = Federation(FedCorRule(2, QUICK), noise)
    for _ in range(13):
        federation.play()
    # Warm-up is rounds 1 to 3; then 7 and 11 are sampled; the round after each tells the change.
    assert federation.asked == [8, 8, 8, 8, 0, 0, 8, 8, 0, 0, 8, 8, 0]


def test_first_fit_comes_right_after_warm_up() -> None:
    federation = Federation(FedCorRule(2, QUICK), noise)
    fitted = []
    for _ in range(4):
        federation.play()
        fitted.append(federation.state["fitted"])
    assert fitted == [False, False, False, True]


def test_samples_are_the_changes_of_the_sampled_rounds() -> None:
    federation = Federation(FedCorRule(2, QUICK), noise)
    for _ in range(8):
        federation.play()
    samples = federation.state["samples"]
    assert [number for number, _ in samples] == [1, 2, 3, 7]
    for number, changes in samples:
        assert sorted(changes) == EIGHT
        np.testing.assert_allclose([changes[c] for c in EIGHT], noise(number), atol=1e-12)


def test_sampled_rounds_draw_as_uniform_selection_does() -> None:
    federation = Federation(FedCorRule(2, QUICK), noise, seed=4)
    chosen = [federation.play() for _ in range(7)]
    for number in (1, 2, 3, 7):
        plan = Selector(UniformRule(2), 0, seed=4).plan(number, EIGHT)
        uniform = UniformRule(2).select({}, plan.now, {}).clients
        assert set(chosen[number - 1]) == set(uniform)


def test_old_samples_are_dropped_when_they_weigh_nothing() -> None:
    schedule = Schedule(warm_up=2, interval=2, annealing=0.9, discount=0.01)
    federation = Federation(FedCorRule(2, schedule), noise)
    for _ in range(9):
        federation.play()
    # At round 9 a sample of round 4 weighs .01^4 = 1e-8 and one of round 6 .01^2.
    assert [number for number, _ in federation.state["samples"]] == [6, 8]


def test_no_update_leaves_no_sample() -> None:
    rule = FedCorRule(2, QUICK)
    now = make_round(1, EIGHT, 2)
    state = rule.select(rule.initial_state(), now, told(np.ones(8))).state
    state = rule.observe(state, now, {})
    after = rule.select(state, make_round(2, EIGHT, 2), told(np.zeros(8))).state
    assert after["samples"] == []


def test_client_that_told_no_loss_is_left_out_of_the_sample() -> None:
    rule = FedCorRule(2, QUICK)
    state = rule.select(rule.initial_state(), make_round(1, EIGHT, 2), told(np.ones(8))).state
    some = {client: s for client, s in told(np.zeros(8)).items() if client != "3"}
    state = rule.select(state, make_round(2, EIGHT, 2), some).state
    assert state["samples"] == [(1, dict.fromkeys("0124567", -1.0))]


def test_absurd_loss_is_left_out_of_the_sample() -> None:
    rule = FedCorRule(2, QUICK)
    state = rule.select(rule.initial_state(), make_round(1, EIGHT, 2), told(np.ones(8))).state
    losses = np.array([0.0, 1e300, 0, 0, 0, 0, 0, -1e9])
    state = rule.select(state, make_round(2, EIGHT, 2), told(losses)).state
    assert state["samples"] == [(1, dict.fromkeys("023456", -1.0))]


def test_client_that_joins_late_changes_no_other_embedding() -> None:
    rule, now = FedCorRule(2, QUICK), make_round(1, EIGHT, 2)
    before = rule.select(rule.initial_state(), now, told(np.ones(8))).state
    after = rule.select(before, make_round(2, [*EIGHT, "8"], 2), told(np.ones(9))).state
    assert list(after["embeddings"]) == [*EIGHT, "8"]
    for client in EIGHT:
        np.testing.assert_array_equal(after["embeddings"][client], before["embeddings"][client])


def test_first_embeddings_have_unit_length_on_average() -> None:
    rule, clients = FedCorRule(2, QUICK), [str(k) for k in range(400)]
    state = rule.select(rule.initial_state(), make_round(1, clients, 2), {}).state
    embeddings = np.stack(list(state["embeddings"].values()))
    assert embeddings.shape == (400, 15)
    # The mean of 400 chi-squared / 15 variables has a standard error of sqrt(2 / 15 / 400) = .018.
    assert np.mean((embeddings**2).sum(axis=1)) == pytest.approx(1, abs=0.075)


def test_selections_count_until_the_next_fit() -> None:
    federation = Federation(FedCorRule(2, QUICK), noise)
    for _ in range(4):
        chosen = federation.play()
    assert federation.state["times-selected"] == dict.fromkeys(chosen, 1)
    again = federation.play()
    assert sum(federation.state["times-selected"].values()) == 4
    assert set(federation.state["times-selected"]) == {*chosen, *again}
    for _ in range(3):
        last = federation.play()
    assert federation.state["times-selected"] == dict.fromkeys(last, 1)  # round 8 fits


def direct_greedy(sigma, shares, annealing, eligible, size) -> list[int]:
    """Follow the paper: the score from the covariance given all those chosen, by inversion."""
    chosen: list[int] = []
    for _ in range(size):
        posterior = sigma
        if chosen:
            inverse = np.linalg.inv(sigma[np.ix_(chosen, chosen)])
            posterior = sigma - sigma[:, chosen] @ inverse @ sigma[chosen]
        scores = {
            k: annealing[k]
            * sum(shares[i] * posterior[i, k] for i in range(len(sigma)))
            / posterior[k, k] ** 0.5
            for k in eligible
            if k not in chosen
        }
        chosen.append(max(scores, key=scores.get))
    return chosen


@given(st.integers(0, 10_000), st.integers(1, 5))
def test_greedy_against_the_formula(seed: int, size: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(3, 8))
    sigma = x.T @ x + 0.1 * np.eye(8)
    shares = rng.dirichlet(np.ones(8))
    annealing = 0.9 ** rng.integers(0, 4, size=8)
    eligible = [1, 2, 4, 5, 7]
    assert greedy(sigma, shares, annealing, eligible, size) == direct_greedy(
        sigma, shares, annealing, eligible, size
    )


def test_sum_runs_over_all_clients_not_only_over_those_left() -> None:
    # Client 0 goes with 2, which cannot be chosen and has nearly all the examples.
    sigma = np.array([[1.0, 0.0, 0.9], [0.0, 1.0, 0.0], [0.9, 0.0, 1.0]])
    shares, even = np.array([0.05, 0.06, 0.89]), np.ones(3)
    assert greedy(sigma, shares, even, [0, 1], 1) == [0]


def test_annealing_makes_room_for_others() -> None:
    sigma = np.array([[1.0, 0.1], [0.1, 0.9]])
    shares = np.array([0.5, 0.5])
    assert greedy(sigma, shares, np.array([1.0, 1.0]), [0, 1], 1) == [0]
    assert greedy(sigma, shares, np.array([0.9, 1.0]), [0, 1], 1) == [1]


def test_rule_anneals_by_the_selections_since_the_fit() -> None:
    # Two clients alike, of 1.00 and 0.99 times the same embedding: 0.9 for one selection decides.
    rule = FedCorRule(1, QUICK)
    now = make_round(5, "01", 1)
    state = {**rule.initial_state(), "embeddings": {"0": np.ones(15), "1": np.full(15, 0.99)}}
    assert rule.select(state, now, {}).clients == ("0",)
    assert rule.select({**state, "times-selected": {"0": 1}}, now, {}).clients == ("1",)


def test_rule_weighs_clients_by_their_examples() -> None:
    # Client 0 goes with the large client 2, which cools down; client 1 with nobody.
    rule = FedCorRule(1, QUICK)
    one, other = np.eye(2, 15)
    state = {**rule.initial_state(), "embeddings": {"0": one, "1": other, "2": one}}
    for sizes, expected in (((1, 3, 9), "0"), ((1, 9, 3), "1")):
        num_examples = {str(k): float(size) for k, size in enumerate(sizes)}
        now = make_round(5, "01", 1, num_examples=num_examples, cooling="2")
        assert rule.select(state, now, {}).clients == (expected,)


def test_equal_scores_go_to_those_that_wait_longest() -> None:
    assert greedy(np.eye(4), np.full(4, 0.25), np.ones(4), [2, 0, 3, 1], 2) == [2, 0]


def test_variance_of_zero_is_an_error() -> None:
    with pytest.raises(ValueError, match="the fit has diverged"):
        greedy(np.ones((3, 3)), np.full(3, 1 / 3), np.ones(3), [0, 1, 2], 2)


def across_groups(rule_name: str) -> float:
    """Return how often the two chosen are of different groups, where the losses move by group."""
    rounds, hits = 40, []
    for seed in range(3):

        def change(number: int, seed: int = seed) -> np.ndarray:
            rng = np.random.default_rng([seed, number])
            by_group = rng.normal(scale=0.3, size=2).repeat(4)
            return by_group + rng.normal(scale=0.02, size=8)

        warm_up = 15 if rule_name == "fedcor" else 10_000  # uniform for ever
        schedule = Schedule(warm_up, interval=1000, annealing=0.95, discount=0.95)
        federation = Federation(FedCorRule(2, schedule), change, seed=seed)
        for number in range(1, 15 + rounds + 1):
            groups = {int(client) // 4 for client in federation.play()}
            if number > 15:
                hits.append(len(groups) == 2)
    return float(np.mean(hits))


def test_two_correlated_groups_are_both_represented() -> None:
    assert across_groups("fedcor") >= 0.9


def test_uniform_selection_represents_both_groups_about_half_of_the_time() -> None:
    # 4 of 7 in expectation; 120 draws have a standard error of .045.
    assert across_groups("uniform") == pytest.approx(4 / 7, abs=0.12)


def test_schedule_is_part_of_the_record() -> None:
    strategy = FedCor(FedAvg(min_available_nodes=2), schedule="short")
    assert "Schedule(warm_up=5, interval=5, annealing=0.9, discount=0.95)" in str(strategy.rule)


def test_schedules_of_the_paper() -> None:
    assert SCHEDULES["fashion-mnist"] == Schedule(15, 10, 0.95, 0.95)
    assert SCHEDULES["cifar-10"] == Schedule(20, 50, 0.9, 0.99)


def test_without_warm_up_the_first_embeddings_choose() -> None:
    schedule = Schedule(warm_up=0, interval=3, annealing=0.9, discount=0.9)
    federation = Federation(FedCorRule(2, schedule), noise)
    for _ in range(5):
        assert len(set(federation.play())) == 2
    assert federation.asked == [0, 0, 8, 8, 0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((-1, 2, 0.9, 0.9), "warm_up is -1"),
        ((1, 1, 0.9, 0.9), "interval is 1, but must be at least 2"),
        ((1, 2, 0.0, 0.9), r"annealing is 0\.0"),
        ((1, 2, 0.9, 1.1), r"discount is 1\.1"),
    ],
)
def test_wrong_schedule_is_refused(options: tuple, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Schedule(*options)


def test_unknown_schedule_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'mnist'.*fashion-mnist, cifar-10, short"):
        FedCor(FedAvg(min_available_nodes=2), schedule="mnist")
