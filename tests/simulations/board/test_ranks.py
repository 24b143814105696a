"""Ranks of rules, Friedman's test and Nemenyi's critical difference."""

import numpy as np
import pytest

from pncs_flower.simulations.board.ranks import critical_difference, rank


def test_ranks_and_tests_are_those_worked_out_by_hand() -> None:
    found = rank(
        {
            "one": {"a": 0.9, "b": 0.8, "c": 0.7},
            "two": {"a": 0.5, "b": 0.4, "c": 0.3},
            "three": {"a": 0.6, "b": 0.1, "c": 0.2},
            "four": {"b": 0.9, "a": 0.8, "c": 0.1},
        }
    )
    assert found.means == {"a": 1.25, "b": 2.0, "c": 2.75}
    # 12 N / (k (k + 1)) (1.25^2 + 2^2 + 2.75^2 - k (k + 1)^2 / 4) = 4.5, of two degrees of freedom.
    assert found.p == pytest.approx(np.exp(-4.5 / 2))
    # q = 2.343 for three rules (Demsar's table 5), so 2.343 sqrt(3 * 4 / (6 * 4)).
    assert found.critical == pytest.approx(1.657, abs=0.001)
    assert found.level_with_the_best == ["a", "b", "c"]
    sure = rank({str(n): {"a": 0.9, "b": 0.8, "c": 0.7} for n in range(9)})
    assert sure.p < 0.001
    assert sure.level_with_the_best == ["a", "b"]  # 2.343 sqrt(12 / 54) = 1.10


def test_equals_share_a_rank_and_a_setting_that_lacks_a_rule_has_none() -> None:
    found = rank(
        {
            "one": {"a": 0.5, "b": 0.5, "c": 0.9},
            "two": {"a": 0.1, "b": 0.3 + 1e-12, "c": 0.3},
            "three": {"a": 0.9, "c": 0.1},
        }
    )
    assert found.settings == ["one", "two"]
    assert found.means == {"c": 1.25, "b": 2.0, "a": 2.75}
    nowhere = rank({"one": {"a": np.nan, "b": 0.1}, "two": {"a": 0.2, "b": 0.1}})
    assert nowhere.means == {"a": 1.5, "b": 1.5}
    nothing = rank({"one": {"a": 0.5}, "two": {"b": 0.5}})
    assert (nothing.settings, nothing.means) == ([], {})


def test_a_critical_difference_needs_two_rules_and_a_setting() -> None:
    assert critical_difference(2, 6) == pytest.approx(1.960 * np.sqrt(2 * 3 / 36), abs=0.001)
    # As Demsar 2006 has it for four classifiers on 14 data sets: 1.25.
    assert critical_difference(4, 14) == pytest.approx(1.25, abs=0.005)
    assert np.isnan(critical_difference(1, 6))
    assert np.isnan(critical_difference(3, 0))
