"""Learning rates are chosen on validation examples, which no client holds and no test uses."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pncs_flower.simulations.config import Config, default_run_config
from pncs_flower.simulations.sweep import run as sweep_run
from pncs_flower.simulations.sweep.cell import Cell
from pncs_flower.simulations.sweep.pool import Moved
from pncs_flower.simulations.sweep.run import choose_rates, run_sweep, tuning_cells, with_rates
from pncs_flower.simulations.sweep.sweep import Sweep
from pncs_flower.simulations.task import load_inputs
from pncs_flower.strategies import SelectionError

SWEEP = Sweep(
    "a sweep",
    ("uniform", "round-robin"),
    clients=5,
    seeds=1,
    settings={"num-rounds": 1, "device": "cpu", "model": "linear"},
    tune={"lr": [1e-9, 1.0], "seeds": 2},
)


def rows(*accuracies: float) -> list[dict[str, Any]]:
    return [{"accuracy": accuracy} for accuracy in accuracies]


def inputs(evaluate_on: str) -> Any:
    return load_inputs(Config.from_run_config(default_run_config() | {"evaluate-on": evaluate_on}))


def test_validation_examples_are_a_tenth_of_each_class_and_no_client_has_them() -> None:
    usual, held = inputs("test"), inputs("validation")
    assert len(held.test) + len(held.train_labels) == len(usual.train_labels)
    for label in range(10):
        share = (held.test_labels == label).sum() / (usual.train_labels == label).sum()
        assert 0.09 < share <= 0.1
    pool, labels = held.train_tensors(np.arange(len(held.train_labels)))
    np.testing.assert_array_equal(labels, held.train_labels)
    together = np.concatenate([pool.numpy(), held.test_tensors()[0].numpy()])
    everything = usual.train_tensors(np.arange(len(usual.train_labels)))[0].numpy()
    # The same images, in another order: sorted, they are equal.
    flat = [
        np.sort(each.reshape(len(each), -1).view("V256").ravel()) for each in (together, everything)
    ]
    np.testing.assert_array_equal(*flat)


def test_tuning_never_sees_the_test_examples_nor_a_seed_of_the_sweep() -> None:
    cells = tuning_cells(SWEEP)
    assert len(cells) == 2 * 2 * 2
    assert {cell.settings["evaluate-on"] for cell in cells} == {"validation"}
    assert {cell.settings["seed"] for cell in cells} == {1000, 1001} == {c.seed for c in cells}


def test_the_best_mean_over_seeds_of_the_last_five_rounds_is_chosen() -> None:
    first = tuning_cells(SWEEP)[0]
    low, high = (replace(first, settings={**first.settings, "lr": lr}) for lr in (0.1, 1.0))
    chosen = choose_rates(
        [
            (low, rows(0.9, 0.1, 0.2, 0.3, 0.4, 0.5)),  # 0.3
            (low, rows(0.5)),
            (high, rows(0.6)),
            (high, []),  # diverged: 0
        ]
    )
    assert [each.lr for each in chosen] == [0.1]
    assert chosen[0].accuracies == pytest.approx({"0.1": 0.4, "1": 0.3})


def test_a_run_that_failed_counts_as_the_worst_score_that_there_is() -> None:
    first = tuning_cells(SWEEP)[0]
    low, high = (replace(first, settings={**first.settings, "lr": lr}) for lr in (0.1, 1.0))
    # R² goes below 0, where a rate that learns slowly still is after a few rounds.
    (chosen,) = choose_rates([(high, []), (low, [{"r2": -0.2}])])
    assert chosen.lr == 0.1
    assert chosen.accuracies == {"0.1": -0.2, "1": -1.0}


def test_of_equal_rates_the_smallest_is_chosen() -> None:
    first = tuning_cells(SWEEP)[0]
    high, low = (replace(first, settings={**first.settings, "lr": lr}) for lr in (1.0, 0.1))
    assert choose_rates([(high, rows(0.5)), (low, rows(0.5))])[0].lr == 0.1


def test_each_cell_has_the_rate_of_its_own_line(tmp_path: Path) -> None:
    chosen = [
        *choose_rates([(tuning_cells(SWEEP)[1], rows(0.5))]),
        *choose_rates([(tuning_cells(SWEEP)[2], rows(0.5))]),
    ]
    cells = with_rates(SWEEP.cells(), chosen)
    assert [(cell.line, cell.settings["lr"]) for cell in cells] == [
        ("uniform", 1.0),
        ("round-robin", 1e-9),
    ]
    assert {cell.settings["evaluate-on"] for cell in cells} == {"test"}


def test_a_sweep_is_tuned_and_says_so(tmp_path: Path) -> None:
    seen: list[str] = []
    failed = run_sweep(SWEEP, tmp_path, 0, lambda cell, done, total: seen.append(f"{done}/{total}"))
    assert not failed
    assert seen == [*(f"{n}/8" for n in range(1, 9)), "1/2", "2/2"]
    about = json.loads((tmp_path / "sweep.json").read_text())
    assert [(each["line"], each["lr"]) for each in about["tuned"]] == [
        ("uniform", 1.0),
        ("round-robin", 1.0),
    ]
    settings = [
        json.loads(path.read_text().partition("\n")[0])["settings"]
        for path in (tmp_path / "cells").iterdir()
    ]
    assert [s["lr"] for s in settings] == [1.0, 1.0]
    # What is there is not run again.
    assert run_sweep(SWEEP, tmp_path, 0, lambda *_: pytest.fail("ran again")) == {}


def test_a_tuning_run_that_broke_stops_the_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(cell: Cell, moved: Moved, scratch: str, **how: Any) -> list[dict[str, Any]]:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sweep_run, "_run_cell", fail)
    failed = run_sweep(SWEEP, tmp_path, 0, lambda *_: None)
    assert len(failed) == 8
    assert not (tmp_path / "cells").exists()


def test_rates_that_all_diverge_are_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(cell: Cell, moved: Moved, scratch: str, **how: Any) -> list[dict[str, Any]]:
        raise SelectionError("no client delivered an update in round 1")

    monkeypatch.setattr(sweep_run, "_run_cell", fail)
    with pytest.raises(ValueError, match="uniform: no run with any of the learning rates"):
        run_sweep(SWEEP, tmp_path, 0, lambda *_: None)


@pytest.mark.parametrize("tune", [{"lr": [0.1]}, {"lr": [], "seeds": 1}, {"lr": [0], "seeds": 1}])
def test_a_tuning_that_makes_no_sense_is_refused(tune: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"(?s)tune.*(required|at least 1|above 0)"):
        replace(SWEEP, tune=tune)
