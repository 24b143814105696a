"""Gradient norm: one number per layer, and the largest norms over all layers."""

import numpy as np
import pytest
from rounds import make_round

from pncs_flower.sketches.kinds import Norm, parse_sketch
from pncs_flower.strategies.rules.gradient_norm import GradientNormRule


def test_norm_is_one_number_of_four_bytes() -> None:
    wire = Norm().encode(np.array([3.0, -4.0]), seed=0, round=1, layer="fc")
    assert (wire.nbytes, Norm().num_bytes(2)) == (4, 4)
    np.testing.assert_array_equal(Norm().decode(wire, 2), np.array([5.0], np.float32))


def test_norm_of_a_single_negative_value_is_positive() -> None:
    wire = Norm().encode(np.array([-2.0]), seed=0, round=1, layer="fc")
    assert Norm().decode(wire, 1) == 2.0


def test_norm_does_not_overflow_in_float16() -> None:
    values = np.full(4, 60000, np.float16)
    assert Norm().decode(Norm().encode(values, seed=0, round=1, layer=""), 4) == 120000.0


def test_norm_that_noise_has_made_negative_is_none() -> None:
    assert Norm().decode(np.array([-1.0], np.float32), 7).tolist() == [0.0]


@pytest.mark.parametrize("wire", [[np.nan], [np.inf], [1.0, 1.0]])
def test_what_is_no_norm_is_refused(wire) -> None:
    with pytest.raises(ValueError, match="sketch"):
        Norm().decode(np.array(wire, np.float32), 7)


def test_norm_has_no_similarity() -> None:
    with pytest.raises(ValueError, match="no direction"):
        parse_sketch("norm").check_order(2)


def test_largest_norms_over_all_layers_are_chosen() -> None:
    # Norms over both layers: 5, sqrt(26), sqrt(32), 4.
    parts = {"0": (3, 4), "1": (5, 1), "2": (4, 4), "3": (0, 4)}
    summaries = {
        client: {"a": np.array([a], np.float32), "b": np.array([b], np.float32)}
        for client, (a, b) in parts.items()
    }
    choice = GradientNormRule(2).select({}, make_round(1, "0123", 2), summaries)
    assert choice.clients == ("2", "1")


def test_equal_norms_go_to_those_that_wait_longest() -> None:
    summaries = {client: {"a": np.array([0.0], np.float32)} for client in "3120"}
    assert GradientNormRule(2).select({}, make_round(1, "3120", 2), summaries).clients == ("3", "1")


def test_wrong_summary_is_refused() -> None:
    with pytest.raises(ValueError, match="summary is 'loss'"):
        GradientNormRule(summary="loss")
