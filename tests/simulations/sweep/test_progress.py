"""How far runs have come for what they spent, against values worked out by hand."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from pncs_flower.simulations.sweep.cell import Run
from pncs_flower.simulations.sweep.progress import (
    BYTES,
    ROUNDS,
    TIME,
    UPLOAD,
    known,
    spent_until,
    steps,
    to_reach,
)


def run(scores: Sequence[float], seconds: Sequence[float] = (), **summary: Any) -> Run:
    """Return a run with these scores after its rounds, each of which took so many seconds."""
    rounds: list[dict[str, Any]] = [
        {"accuracy": score, "bytes_up": {"training": 1}, "bytes_down": {"training": 9}}
        for score in scores
    ]
    for row, spent in zip(rounds, seconds, strict=False):
        row |= {"clock": 0.0, "simulated_seconds": {"training": spent / 2, "evaluation": spent / 2}}
    return Run({}, rounds, summary)


def test_time_and_bytes_add_up() -> None:
    one = run([0.1, 0.2, 0.3], [10, 5, 5])
    assert one.simulated is not None
    assert one.simulated.tolist() == [10, 15, 20]
    amounts = [spent.of(one) for spent in (ROUNDS, BYTES, UPLOAD)]
    assert [a.tolist() for a in amounts if a is not None] == [[1, 2, 3], [10, 20, 30], [1, 2, 3]]


def test_time_is_not_known_without_devices() -> None:
    runs = [run([0.1], [1]), run([0.1])]
    assert known(runs[:1], TIME)
    assert not known(runs, TIME)
    assert known(runs, BYTES)


def test_a_score_holds_until_the_next_round_is_over() -> None:
    # Rounds end at 10, 20 and at 4, 15, 30: up to 20 both are known.
    slow, quick = run([0.2, 0.4], [10, 10]), run([0.3, 0.5, 0.9], [4, 11, 15])
    x, scores = steps([slow, quick], TIME)
    assert x.tolist() == [10, 15, 20]  # before 10 nothing is known of the first
    assert scores.tolist() == [[0.2, 0.2, 0.4], [0.3, 0.5, 0.5]]


def test_steps_begin_with_the_score_before_training() -> None:
    first = {"initial-accuracy": 0.1}
    slow, quick = run([0.2, 0.4], [10, 10], **first), run([0.3], [4], **first)
    x, scores = steps([slow, quick], TIME)
    assert x.tolist() == [0, 4]  # where the shorter run ends, so do the steps
    assert scores.tolist() == [[0.1, 0.1], [0.1, 0.3]]


def test_a_run_that_was_stopped_early_stays_as_it_ended() -> None:
    stopped = run([0.3, 0.3, 0.3], [4, 0, 0], **{"stopped-after-round": 1})
    x, scores = steps([run([0.2, 0.4, 0.5], [10, 10, 10]), stopped], TIME)
    assert x.tolist() == [10, 20, 30]
    assert scores[1].tolist() == [0.3, 0.3, 0.3]
    assert steps([stopped], TIME)[0].tolist() == [4]


@pytest.mark.parametrize(("spent", "until"), [(ROUNDS, 2), (TIME, 15), (BYTES, 20), (UPLOAD, 2)])
def test_what_it_took_is_that_up_to_the_end_of_the_round(spent: Any, until: float) -> None:
    one = run([0.1, 0.5, 0.4], [10, 5, 5])
    assert spent_until(one, spent, 0.5) == until
    assert spent_until(one, spent, 0.51) == np.inf


def test_a_run_that_never_gets_there_counts_as_later_than_all() -> None:
    runs = [run([0.3, 0.4]), run([0.4, 0.4]), run([0.1, 0.1])]
    assert to_reach(runs, ROUNDS, 0.4) == (2, 1, np.inf, 2, 3)
    assert to_reach(runs, ROUNDS, 0.9) == (np.inf, np.inf, np.inf, 0, 3)
    # Between one that gets there and one that does not, the median is not finite either.
    assert to_reach(runs[1:], ROUNDS, 0.4) == (np.inf, 1, np.inf, 1, 2)


# Tables of the sign test: 6 to 8 values, the smallest; 9 to 11, the second; 12 the third.
@pytest.mark.parametrize(
    ("n", "rank"), [(1, 1), (5, 1), (6, 1), (8, 1), (9, 2), (10, 2), (11, 2), (12, 3), (20, 6)]
)
def test_the_interval_is_that_of_the_sign_test(n: int, rank: int) -> None:
    runs = [run([0.0] * before + [1.0]) for before in range(n)]  # one gets there in each round
    found = to_reach(runs, ROUNDS, 0.5)
    assert (found.low, found.high) == (rank, n + 1 - rank)
    if n >= 6:
        from scipy import stats

        assert 1 - 2 * stats.binom.cdf(rank - 1, n, 0.5) >= 0.95
        assert 1 - 2 * stats.binom.cdf(rank, n, 0.5) < 0.95
