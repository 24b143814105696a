"""Numbers on who is served, against values worked out by hand and the definitions in float64."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pncs_flower.fairness import Participation, accuracy_by_client, gini, jain, worst_tenth

COUNTS = st.lists(st.integers(0, 1000), min_size=1, max_size=40)


@pytest.mark.parametrize(
    ("values", "inequality", "equality"),
    [
        ([3, 3, 3, 3], 0.0, 1.0),
        ([0, 0, 0, 4], 0.75, 0.25),  # one has all: 1 - 1/n and 1/n
        ([0, 0, 2, 2], 0.5, 0.5),
        ([1, 2, 3], 2 / 9, 36 / 42),  # mean difference 8/9, half of it over the mean 2
        ([0, 0], 0.0, 1.0),
        ([7], 0.0, 1.0),
        ([True, False], 0.5, 0.5),
        (np.array([1, 2, 3], np.float16), 2 / 9, 36 / 42),
    ],
)
def test_by_hand(values: list[int], inequality: float, equality: float) -> None:
    assert gini(values) == pytest.approx(inequality, abs=1e-12)
    assert jain(values) == pytest.approx(equality, abs=1e-12)


@given(COUNTS)
def test_as_defined(counts: list[int]) -> None:
    x = np.array(counts, dtype=np.float64)
    if x.any():
        assert gini(x) == pytest.approx(
            np.abs(x[:, None] - x).sum() / (2 * len(x) * x.sum()), abs=1e-9
        )
        assert jain(x) == pytest.approx(x.sum() ** 2 / (len(x) * (x**2).sum()), abs=1e-9)


@given(COUNTS, st.floats(0.001, 1e150))
def test_neither_order_nor_unit_matter(counts: list[int], unit: float) -> None:
    shuffled = [unit * count for count in reversed(counts)]
    assert gini(shuffled) == pytest.approx(gini(counts), abs=1e-9)
    assert jain(shuffled) == pytest.approx(jain(counts), abs=1e-9)


@pytest.mark.parametrize("function", [gini, jain])
@pytest.mark.parametrize(
    ("values", "named"),
    [
        ([], "not \\(0,\\)"),
        (3, "not \\(\\)"),
        ([[1, 2]], "not \\(1, 2\\)"),
        ([1, -1], "-1.0"),
        ([1, float("nan")], "nan"),
        ([1, float("inf")], "inf"),
    ],
)
def test_what_has_no_inequality_is_refused(function, values, named) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=named):
        function(values)


@pytest.mark.parametrize(
    ("accuracies", "expected"),
    [
        ([0.5], 0.5),
        ([0.1 * k for k in range(10, 0, -1)], 0.1),
        ([0.1] * 3 + [0.4] + [0.9] * 21, 0.1),  # three of 25
        ([0.0, 0.3, *[0.9] * 9], 0.15),  # two of 11
        ([float("nan"), 0.7], 0.7),
        ([float("nan")], None),
        ([], None),
    ],
)
def test_worst_tenth(accuracies: list[float], expected: float | None) -> None:
    assert worst_tenth(accuracies) == (None if expected is None else pytest.approx(expected))


def test_each_client_has_the_accuracy_of_its_labels() -> None:
    labels = [[10, 0, 0], [5, 15, 0], [0, 0, 8], [3, 0, 8], [0, 0, 0]]
    by_class = [0.8, 0.4, None]  # nobody tests the third class
    found = accuracy_by_client(labels, np.array(by_class, dtype=np.float64))
    assert found[[0, 1, 3]].tolist() == pytest.approx([0.8, 0.5, 0.8])
    assert np.isnan(found[[2, 4]]).all()


def test_clients_with_the_labels_of_the_test_have_its_accuracy() -> None:
    rng = np.random.default_rng(5)
    examples, share = rng.integers(1, 100, 7), rng.random(7)
    found = accuracy_by_client(np.outer([1, 3], examples), share)
    assert found.tolist() == pytest.approx([(examples @ share) / examples.sum()] * 2)


def test_turns_are_counted() -> None:
    turns = Participation(["a", "b", "c"])
    for chosen in (["a"], ["a", "b"], [], ["a"], ["a"]):
        turns.add(chosen)
    assert turns.times == {"a": 4, "b": 1, "c": 0}
    assert (turns.rounds, turns.never) == (5, 1)
    assert turns.gini == pytest.approx(gini([4, 1, 0]))
    assert turns.jain == pytest.approx(25 / 51)


@pytest.mark.parametrize(
    ("rounds", "wait"),
    [
        ([], 0),
        (["ab"], 0),
        (["a", "b"], 1),
        (["ab", "a", "a", "ab", "a"], 2),  # between two turns
        (["a", "a", "ab"], 2),  # before the first
        (["ab", "a", "a", "a"], 3),  # and after the last
        (["a", "a", "a"], 3),  # never
        (["", ""], 2),
    ],
)
def test_longest_wait(rounds: list[str], wait: int) -> None:
    turns = Participation("ab")
    for chosen in rounds:
        turns.add(list(chosen))
    assert turns.longest_wait == wait


def test_one_who_comes_later_has_waited_from_the_start() -> None:
    turns = Participation()
    turns.add(["a"])
    turns.add(["a"])
    turns.meet(["b"])
    assert (turns.longest_wait, turns.never) == (2, 1)


def test_one_named_twice_in_a_round_had_one_turn() -> None:
    turns = Participation()
    turns.add(["a", "a"])
    assert turns.times == {"a": 1}


def test_numbers_whose_sum_is_too_large_for_a_float():
    assert gini([1e308, 1e308, 0.0]) == pytest.approx(gini([1.0, 1.0, 0.0]))
    assert jain([1e308, 1e308, 0.0]) == pytest.approx(2 / 3)
