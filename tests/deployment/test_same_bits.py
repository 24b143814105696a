"""A SuperLink with SuperNodes gives the choices and the bits of a single process."""

import json
from pathlib import Path
from typing import Any

import pytest
from apps import deployed
from deployment.conftest import NUM_NODES, Deployed, outcome

from pncs_flower.simulations.run.in_process import InProcessGrid

pytestmark = [pytest.mark.superlink, pytest.mark.timeout(1800)]

RUNS: dict[str, dict[str, Any]] = {
    "pncs": {"rule": "PNCS", "queue_length": 2},
    "pncs-own": {"rule": "PNCS", "queue_length": 2, "ride_along": False},
    "memory": {"rule": "GradientMemory", "sketch": "count:16"},
    "sketched-mean": {"rule": "SketchedMean", "candidates": 3},
    "pncs-fitted": {"rule": "PNCS", "queue_length": 2, "combine": "sketched-mean"},
    "power-of-choice": {"rule": "PowerOfChoice", "candidates": 3},
    "round-robin": {"rule": "RoundRobin", "combine": "fedvarp"},
}
QUICK = "pncs"  # for `make test`; all others only in `make test-all`


def settings(name: str) -> dict[str, Any]:
    options = dict(RUNS[name])
    return {
        "rule": options.pop("rule"),
        "rounds": 2,
        "options": json.dumps({"seed": 5, **options}),
        # Where clients evaluate, summaries ride along with real evaluations.
        "evaluate": 1.0 if name == "pncs" else 0.0,
    }


def run_all(shared: Deployed, *names: str) -> dict[str, Path]:
    """Run some at once: mostly, they wait."""
    submitted = {name: shared.submit(name, **settings(name)) for name in names}
    for name, (run, _) in submitted.items():
        status, details = shared.federation.wait(run, timeout=1500)
        assert status == "finished:completed", f"{name}: {details}\n{run.log.read_text()}"
    return {name: output for name, (_, output) in submitted.items()}


@pytest.fixture(scope="module")
def quick_result(shared: Deployed) -> Path:
    return run_all(shared, QUICK)[QUICK]


@pytest.fixture(scope="module")
def results(shared: Deployed, quick_result: Path) -> dict[str, Path]:
    return {QUICK: quick_result, **run_all(shared, *(name for name in RUNS if name != QUICK))}


def outcome_in_process(name: str, folder: Path) -> dict[str, Any]:
    grid = InProcessGrid(deployed.make_client_app(), NUM_NODES)
    deployed.run(grid, {**deployed.SETTINGS, **settings(name), "output": str(folder)})
    return outcome(folder)


def test_choices_metrics_and_weights_are_those_of_one_process(
    quick_result: Path, tmp_path: Path
) -> None:
    assert outcome(quick_result) == outcome_in_process(QUICK, tmp_path)


@pytest.mark.minutes
@pytest.mark.parametrize("name", [name for name in RUNS if name != QUICK])
def test_those_of_other_rules_are_too(name: str, results: dict[str, Path], tmp_path: Path) -> None:
    assert outcome(results[name]) == outcome_in_process(name, tmp_path)


@pytest.mark.minutes
def test_summaries_that_ride_along_give_the_same_choices_and_the_history_says_so(
    results: dict[str, Path],
) -> None:
    ahead, own = outcome(results["pncs"]), outcome(results["pncs-own"])
    assert ahead["weights"] == own["weights"]
    assert [r["chosen"] for r in ahead["history"]] == [r["chosen"] for r in own["history"]]
    assert [r["pre_round"] for r in ahead["history"]] == ["own", "ahead"]
    assert [r["pre_round"] for r in own["history"]] == ["own", "own"]
