"""Oort: utilities against the paper's formula, exploration, and the pacer."""

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from rounds import make_round

from pncs_flower.strategies import SelectionError
from pncs_flower.strategies.rules.oort import OortRule


def state_with(utilities: dict[str, float], **other) -> dict:
    return {**OortRule().initial_state(), "utilities": utilities, **other}


def metrics(loss: float, size: float, seconds: float = 1.0) -> dict[str, float]:
    return {"train-loss": loss, "num-examples": size, "seconds": seconds}


def test_statistical_utility_is_size_times_loss() -> None:
    rule = OortRule()
    now = make_round(1, "01", 2)
    state = rule.observe(rule.initial_state(), now, {"1": metrics(0.5, 40.0)})
    assert state["utilities"] == {"1": 20.0}


def test_utility_against_the_formula() -> None:
    # T = 5; the median of 10, 20 and 40 is 20, so client 2 is clipped to it.
    rule = OortRule(clip_quantile=0.5, penalty=2.0)
    state = state_with({"0": 10.0, "1": 20.0, "2": 40.0}, seconds={"0": 4.0, "1": 10.0, "2": 5.0})
    last = {"0": 1, "1": 3, "2": 8}
    now = make_round(9, "0123", 2, last_rounds=last)
    expected = {
        "0": 10.0 + math.sqrt(0.1 * math.log(9) / 1),
        "1": (20.0 + math.sqrt(0.1 * math.log(9) / 3)) * (5 / 10) ** 2,
        "2": 20.0 + math.sqrt(0.1 * math.log(9) / 8),
    }
    assert rule.utilities(state, now) == pytest.approx(expected, rel=1e-14)


def test_a_slow_client_does_not_keep_its_bonus_whole() -> None:
    """By hand: (.2 + sqrt(.1 ln 50)) * .01 is .0083, and .3 + sqrt(.1 ln 50 / 25) is .425."""
    rule = OortRule(1, explored_share=0.0, clip_quantile=1.0, duration_key="s")
    state = state_with({"0": 0.2, "1": 0.3}, seconds={"0": 50.0, "1": 1.0})
    now = make_round(50, "01", 1, last_rounds={"0": 1, "1": 25})
    assert rule.utilities(state, now) == pytest.approx({"0": 0.0083, "1": 0.425}, abs=5e-4)
    assert rule.utilities(state, now)["0"] == pytest.approx(0.0083, abs=5e-5)
    assert rule.select(state, now, {}).clients == ("1",)


def test_clients_so_slow_that_nothing_is_left_of_them_are_no_obstacle() -> None:
    rule = OortRule(2, explored_share=0.0, duration_key="s")
    state = state_with({"0": 1.0, "1": 2.0}, seconds={"0": 1e300, "1": math.inf})
    now = make_round(5, "01", 2, last_rounds={"0": 1, "1": 2})
    assert sorted(rule.select(state, now, {}).clients) == ["0", "1"]


def test_speed_plays_no_part_where_nothing_tells_of_it() -> None:
    rule = OortRule(duration_key=None)
    now = make_round(1, "01", 2)
    state = rule.observe(rule.initial_state(), now, {"1": metrics(1.0, 1.0, seconds=1e6)})
    assert (state["seconds"], state["gains"]) == ({}, [])


def test_durations_are_those_that_the_server_knows_unless_a_metric_is_named() -> None:
    now = replace(make_round(1, "01", 2), seconds={"0": 3.0, "1": 60.0})
    delivered = {"0": metrics(1.0, 2.0, seconds=7.0)}  # client 1 was too late
    state = OortRule().observe(OortRule().initial_state(), now, delivered)
    assert state["seconds"] == {"0": 3.0, "1": 60.0}
    assert state["gains"] == [2.0]
    named = OortRule(duration_key="seconds")
    assert named.observe(named.initial_state(), now, delivered)["seconds"] == {"0": 7.0}
    # A round of which nothing is known leaves the durations as they are, and counts for the pacer.
    after = OortRule().observe(state, make_round(2, "01", 2), {})
    assert after["seconds"] == state["seconds"]
    assert after["gains"] == [2.0, 0]


def test_missing_duration_is_an_error_that_names_the_option() -> None:
    rule = OortRule(duration_key="train-seconds")
    delivered = {client: metrics(1.0, 1.0) for client in "01"}
    with pytest.raises(SelectionError, match=r"'train-seconds'.*duration_key"):
        rule.observe(rule.initial_state(), make_round(1, "01", 2), delivered)


@pytest.mark.parametrize(
    ("number", "size", "known_chosen"),
    # Shares of .9 * .98 = .882, .9 * .98^9 = .750, .9 * .98^38 = .418, and at least .2
    [(2, 10, 1), (2, 2, 0), (10, 10, 2), (39, 10, 6), (500, 10, 8)],
)
def test_share_of_the_unknown_decays(number: int, size: int, known_chosen: int) -> None:
    clients = [str(k) for k in range(60)]
    known = clients[:30]
    now = make_round(number, clients, size, last_rounds=dict.fromkeys(known, 1))
    choice = OortRule(num_selected=size).select(state_with(dict.fromkeys(known, 1.0)), now, {})
    assert sum(client in known for client in choice.clients) == known_chosen


def test_few_known_clients_are_filled_up_with_unknown_ones() -> None:
    clients = [str(k) for k in range(12)]
    now = make_round(300, clients, 10, last_rounds={"3": 1})
    chosen = OortRule(num_selected=10).select(state_with({"3": 1.0}), now, {}).clients
    assert "3" in chosen
    assert len(set(chosen)) == 10


def test_few_unknown_clients_are_filled_up_with_known_ones() -> None:
    clients = [str(k) for k in range(12)]
    now = make_round(2, clients, 10, last_rounds=dict.fromkeys(clients[1:], 1))
    chosen = OortRule(10).select(state_with(dict.fromkeys(clients[1:], 1.0)), now, {}).clients
    assert "0" in chosen
    assert len(set(chosen)) == 10


def test_known_clients_below_the_cut_off_are_not_drawn() -> None:
    # The second best has 100, so those with 95 or more are admitted: 0, 1 and 2.
    utilities = {"0": 120.0, "1": 100.0, "2": 96.0, "3": 90.0, "4": 1.0}
    rule = OortRule(num_selected=2, clip_quantile=1.0)
    state = state_with(utilities)
    last = dict.fromkeys(utilities, 1)
    drawn = {
        client
        for number in range(2, 80)
        for client in rule.select(
            state, make_round(number, "01234", 2, last_rounds=last), {}
        ).clients
    }
    assert drawn == {"0", "1", "2"}


def test_admitted_are_drawn_by_utility() -> None:
    # Loss so high that the term for time waited is negligible. 300 and 290 are admitted.
    rule = OortRule(num_selected=1, explored_share=0.0, clip_quantile=1.0)
    state = state_with({"0": 3e8, "1": 2.9e8, "2": 1e8})
    last = {"0": 1, "1": 1, "2": 1}
    rounds = 4000
    counts = Counter(
        rule.select(state, make_round(n, "012", 1, last_rounds=last), {}).clients[0]
        for n in range(2, rounds + 2)
    )
    expected = np.array([300.0, 290.0]) / 590 * rounds
    seen = np.array([counts["0"], counts["1"]])
    assert seen.sum() == rounds
    # Chi-squared with 1 degree of freedom; 1% point.
    assert ((seen - expected) ** 2 / expected).sum() < 6.63


def test_pacer_waits_for_longer_when_the_gain_falls() -> None:
    rule = OortRule(duration_key="seconds", pacer_step=5.0)
    state = rule.initial_state()
    preferred = []
    for number in range(1, 81):
        # By 20 rounds, the gains sum to 210, 610, 990 and 590.
        loss = number if number <= 40 else 100 - number
        now = make_round(number, "0", 1)
        state = rule.observe(state, now, {"0": metrics(float(loss), 1.0)})
        preferred.append(state["preferred"])
    assert preferred == [5.0] * 79 + [10.0]


def test_absurd_losses_are_no_obstacle() -> None:
    rule = OortRule(3, duration_key="seconds")
    clients = [str(k) for k in range(6)]
    absurd = {c: metrics(1e308, 1e9, seconds=1e308) for c in clients[:3]}
    usual = {c: metrics(1.0, 5.0) for c in clients[3:]}
    state = rule.observe(rule.initial_state(), make_round(1, clients, 3), {**absurd, **usual})
    now = make_round(300, clients, 3, last_rounds=dict.fromkeys(clients, 1))
    assert len(set(rule.select(state, now, {}).clients)) == 3


def test_zero_losses_are_no_obstacle() -> None:
    clients = [str(k) for k in range(6)]
    now = make_round(300, clients, 3, last_rounds=dict.fromkeys(clients, 1))
    chosen = OortRule(3).select(state_with(dict.fromkeys(clients, 0.0)), now, {}).clients
    assert len(set(chosen)) == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"explored_share": 1.1}, r"explored_share is 1\.1"),
        ({"clip_quantile": -1.0}, r"clip_quantile is -1\.0"),
        ({"penalty": -1.0}, r"penalty is -1\.0"),
        ({"pacer_step": 0.0}, r"pacer_step is 0\.0, but must be a number of seconds above 0"),
    ],
)
def test_wrong_option_is_refused(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        OortRule(**options)
