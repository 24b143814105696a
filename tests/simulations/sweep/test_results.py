"""Statistics and verdicts against values worked out by hand."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter

from pncs_flower.simulations.sweep.cell import Run
from pncs_flower.simulations.sweep.plan import Claim, Report
from pncs_flower.simulations.sweep.results import Description, SweepResults
from pncs_flower.simulations.sweep.statistics import (
    compare,
    holm,
    mean_interval,
    percent,
)
from pncs_flower.simulations.sweep.statistics import judge as judge_claim


def run(seed: int, *accuracies: float) -> Run:
    sent = {"bytes_up": {"training": 10, "pre-round": 1}, "bytes_down": {"training": 100}}
    rounds = [{"accuracy": a, **sent} for a in accuracies]
    return Run({"seed": seed, "line": "pncs", "rule": "pncs"}, rounds, {})


ABOUT = Description("", Report(reference="pncs"))


def results(lines: Mapping[str, Sequence[Run]]) -> SweepResults:
    return SweepResults(ABOUT, {"a panel": lines})


def judge(claim: Mapping[str, Any], results: SweepResults) -> tuple[str, list[str]]:
    return judge_claim(TypeAdapter(Claim).validate_python({"text": "", **claim}), results)


def test_the_interval_is_students() -> None:
    # Mean 2, standard deviation 1, three values: t = 4.302653 at 2 degrees of freedom.
    mean, half = mean_interval(np.array([1.0, 2.0, 3.0]))
    assert float(mean) == pytest.approx(2.0)
    assert float(half) == pytest.approx(4.302653 / 3**0.5, rel=1e-6)


def test_one_seed_has_no_interval() -> None:
    assert np.isnan(mean_interval(np.array([0.5]))[1])


def test_holm_steps_down() -> None:
    # .01 * 3; then .02 * 2 = .04; .04 * 1 = .04.
    assert holm([0.04, 0.01, 0.02]) == pytest.approx([0.04, 0.03, 0.04])


def test_a_rule_that_always_wins_has_the_smallest_p_there_is() -> None:
    lines = {
        "pncs": [run(seed, 0.5 + 0.01 * seed) for seed in range(6)],
        "uniform": [run(seed, 0.4) for seed in range(6)],
    }
    (test,) = compare(results(lines))
    assert test.p == test.least_p == pytest.approx(2 / 2**6)
    assert test.difference == pytest.approx(0.125)


def test_pairs_are_made_by_seed() -> None:
    lines = {"pncs": [run(0, 0.5), run(2, 0.7)], "uniform": [run(1, 0.9), run(2, 0.4)]}
    (test,) = compare(results(lines))
    assert (test.seeds, test.difference) == (1, pytest.approx(0.3))


def test_rules_that_never_differ_are_not_told_apart() -> None:
    lines = {name: [run(seed, 0.5) for seed in range(3)] for name in ("pncs", "uniform")}
    assert compare(results(lines))[0].p == 1.0


def test_ties_are_not_split_by_rounding() -> None:
    lines = {
        "pncs": [run(0, 0.4), run(1, 0.4), run(2, 0.4), run(3, 0.2), run(4, 0.3)],
        "uniform": [run(seed, 0.3) for seed in range(5)],
    }
    assert 0.4 - 0.3 > 0.3 - 0.2  # in floating point
    # Four pairs of one size, and one without a difference: five of sixteen signs are no better.
    assert compare(results(lines))[0].p == pytest.approx(2 * 5 / 16)


def test_converged_is_the_mean_of_the_last_five() -> None:
    assert run(0, 0.0, 0.1, 0.2, 0.3, 0.4, 0.5).converged == pytest.approx(0.3)


def test_bytes_add_up() -> None:
    assert run(0, 0.1, 0.2).bytes_up.tolist() == [11.0, 22.0]
    assert run(0, 0.1, 0.2).bytes_down.tolist() == [100.0, 200.0]


LINES = {"pncs": [run(0, 0.5, 0.6)], "other": [run(0, 0.6, 0.55)], "third": [run(0, 0.1, 0.2)]}
LINES |= {"same": LINES["pncs"], "lost": [run(0, 0.5, np.nan)]}


@pytest.mark.parametrize(
    ("claim", "verdict"),
    [
        ({"kind": "best", "against": ["third"]}, "holds"),
        ({"kind": "best", "against": ["other", "third"]}, "does not hold"),
        ({"kind": "best", "against": ["same"]}, "does not hold"),
        ({"kind": "best", "against": ["lost", "third"]}, "holds"),
        ({"kind": "similar", "against": ["other", "lost"], "within": 0.05}, "does not hold"),
        ({"kind": "ahead", "against": ["other", "lost"], "from": 2}, "holds"),
        ({"kind": "similar", "against": ["other"], "within": 0.05}, "holds"),
        ({"kind": "similar", "against": ["third"], "within": 0.05}, "does not hold"),
        ({"kind": "ahead", "against": ["other"], "from": 2}, "holds"),
        ({"kind": "ahead", "against": ["other"], "from": 1}, "does not hold"),
        ({"kind": "sooner", "against": ["third"], "target": 0.5, "by": 1, "after": 2}, "holds"),
        ({"kind": "sooner", "against": ["other"], "target": 0.6, "by": 2, "after": 2}, "does not"),
    ],
)
def test_a_claim_is_judged(claim: dict[str, Any], verdict: str) -> None:
    assert judge({"text": "", **claim}, results(LINES))[0].startswith(verdict)


def test_rounds_in_a_row_are_told_by_their_ends() -> None:
    lines = {"pncs": [run(0, *np.zeros(9))], "other": [run(0, 1, -1, 1, 1, 1, 1, -1, 1, 1)]}
    _, (told,) = judge({"kind": "ahead", "against": ["other"], "from": 1}, results(lines))
    assert told.endswith("no; behind the best of the others in rounds 1, 3 to 6, 8, 9")


@pytest.mark.parametrize("kind", [{"kind": "best"}, {"kind": "ahead", "from": 2}])
def test_a_reference_that_ends_without_a_finite_score_is_ahead_of_none(
    kind: dict[str, Any],
) -> None:
    about = Description("", Report(reference="lost"))
    found = SweepResults(about, {"a panel": LINES})
    assert judge({"against": ["third"], **kind}, found)[0] == "does not hold"


def test_a_claim_of_which_one_panel_is_missing_holds_in_part() -> None:
    panels = {"one": LINES, "two": {"pncs": LINES["pncs"]}}
    found = SweepResults(ABOUT, panels, ("a cell",))
    verdict, numbers = judge({"kind": "best", "against": ["third"]}, found)
    assert verdict == "holds in part"
    assert numbers[1] == "two: no result for third"


@pytest.mark.parametrize(("last", "verdict"), [(2, "not judged"), (3, "holds")])
@pytest.mark.parametrize(
    "claim",
    [{"kind": "ahead", "from": 3}, {"kind": "sooner", "target": 0.55, "by": 1, "after": 3}],
)
def test_a_claim_on_rounds_beyond_the_last_is_not_judged(
    claim: dict[str, Any], last: int, verdict: str
) -> None:
    lines = {"pncs": [run(0, *[0.6] * last)], "other": [run(0, *[0.5] * last)]}
    assert judge({"text": "", "against": ["other"], **claim}, results(lines))[0] == verdict


def test_a_label_has_only_what_sets_a_panel_apart() -> None:
    names = ("shards 1, layers 1, selected 2", "shards 2, layers 1, selected 2")
    several = SweepResults(ABOUT, dict.fromkeys(names, LINES), ())
    assert several.shared == "layers 1, selected 2"
    assert several.row(names[1], "pncs") == "shards 2: pncs"
    alone = SweepResults(ABOUT, {names[0]: LINES}, ())
    assert alone.shared == names[0]
    assert alone.row(names[0], "pncs") == "pncs"


def test_a_claim_of_which_a_whole_panel_has_no_result_holds_in_part() -> None:
    about = replace(ABOUT, panels=("one", "two"))
    verdict, numbers = judge(
        {"kind": "best", "against": ["third"]}, SweepResults(about, {"one": LINES}, ("a cell",))
    )
    assert verdict == "holds in part"
    assert numbers[1] == "two: no result for pncs, third"


@pytest.mark.parametrize(
    ("share", "shown"), [(0.425, "42.5%"), (0.4, "40%"), (0.999, "99.9%"), (0.07, "7%")]
)
def test_percentages_that_differ_are_shown_so(share: float, shown: str) -> None:
    assert percent(share) == shown
