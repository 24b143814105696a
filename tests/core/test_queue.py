"""The cool-down rule against tables written by hand, and what the queue remembers."""

from typing import Any

import pytest

from pncs_flower.queue import AgeOfUpdateQueue

# Rounds until a client is free again: the smallest whole number above L / S.
# Row: L = 0 to 8; column: S = 1, 2, 3, 4.
FREE_AFTER = {
    0: (1, 1, 1, 1),
    1: (2, 1, 1, 1),
    2: (3, 2, 1, 1),
    3: (4, 2, 2, 1),
    4: (5, 3, 2, 2),
    5: (6, 3, 2, 2),
    6: (7, 4, 3, 2),
    7: (8, 4, 3, 2),
    8: (9, 5, 3, 3),
}


@pytest.mark.parametrize("per_round", [1, 2, 3, 4])
@pytest.mark.parametrize("length", range(9))
def test_a_client_is_free_in_the_first_round_after_t_plus_l_over_s(
    length: int, per_round: int
) -> None:
    queue = AgeOfUpdateQueue(length, per_round)
    queue.push(["a"], round=7)
    free = [round for round in range(7, 20) if queue.available(["a"], round)]
    assert free == list(range(7 + FREE_AFTER[length][per_round - 1], 20))


@pytest.mark.parametrize(
    ("num_clients", "per_round", "rounds"),
    [
        *((10, 2, 3), (100, 10, 8), (10, 4, 1), (10, 3, 2), (11, 2, 4), (12, 2, 4), (5, 2, 1)),
        *((4, 2, 0), (3, 2, 0), (2, 2, 0), (1, 2, 0), (0, 2, 0), (7, 1, 5), (101, 10, 9)),
    ],
)
def test_without_a_length_clients_rest_as_long_as_leaves_a_choice(
    num_clients: int, per_round: int, rounds: int
) -> None:
    queue = AgeOfUpdateQueue(None, per_round)
    assert queue.rounds(num_clients) == rounds
    queue.push(["a"], round=7)
    others = [str(number) for number in range(num_clients - 1)]
    free = [round for round in range(7, 20) if "a" in queue.available(["a", *others], round)]
    assert free == list(range(8 + rounds, 20)) or num_clients == 0
    assert "a" in queue.available(["a", *others], 8, num_clients=2 * per_round)


def test_so_more_than_are_selected_are_free_and_at_most_twice_as_many() -> None:
    for per_round in range(1, 9):
        queue = AgeOfUpdateQueue(None, per_round)
        for num_clients in range(per_round + 1, 60):
            free = num_clients - queue.rounds(num_clients) * per_round
            assert per_round < free <= 2 * per_round


def test_available_keeps_the_order_given() -> None:
    queue = AgeOfUpdateQueue(4, 2)
    queue.push(["b"], round=1)
    assert queue.available(["d", "b", "a", "c"], round=2) == ["d", "a", "c"]


def test_longest_waiting_puts_never_selected_first_and_keeps_ties_in_order() -> None:
    queue = AgeOfUpdateQueue(4, 2)
    queue.push(["a", "b"], round=2)
    queue.push(["c"], round=1)
    assert queue.longest_waiting(["b", "a", "c", "z", "y"], 4) == ["z", "y", "c", "b"]


def test_a_first_round_of_zero_is_not_taken_for_never() -> None:
    queue = AgeOfUpdateQueue(4, 2)
    queue.push(["a"], round=0)
    assert queue.longest_waiting(["a", "b"], 2) == ["b", "a"]


def test_longest_waiting_returns_all_if_there_are_fewer() -> None:
    assert AgeOfUpdateQueue(4, 2).longest_waiting(["a"], 3) == ["a"]


def test_the_last_push_counts() -> None:
    queue = AgeOfUpdateQueue(2, 1)
    queue.push(["a"], round=1)
    queue.push(["a"], round=4)
    assert queue.last_round("a") == 4
    assert queue.available(["a"], round=6) == []


def test_restore_takes_up_the_state() -> None:
    queue = AgeOfUpdateQueue(2, 1)
    queue.push(["a"], round=3)
    other = AgeOfUpdateQueue(2, 1)
    other.restore(queue.state())
    assert other.available(["a", "b"], round=4) == ["b"]


def test_state_is_a_copy() -> None:
    queue = AgeOfUpdateQueue(2, 1)
    queue.state()["a"] = 1
    assert queue.last_round("a") is None


@pytest.mark.parametrize(
    ("length", "per_round", "message"),
    [(-1, 2, "length is -1"), (4, 0, "per_round is 0"), ("", 2, "length is ''")],
)
def test_limits_are_named(length: Any, per_round: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AgeOfUpdateQueue(length, per_round)


def test_a_negative_count_is_refused() -> None:
    with pytest.raises(ValueError, match="count is -2"):
        AgeOfUpdateQueue(4, 2).longest_waiting(["a"], -2)
