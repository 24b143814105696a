"""Devices in a run of the app: settings, results, and the same clock with workers and resumed."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from pncs_flower.devices import PRESETS
from pncs_flower.simulations.client_app import app
from pncs_flower.simulations.config import (
    FLEETS,
    Config,
    default_run_config,
    unused_settings,
)
from pncs_flower.simulations.report.of_run import final_table, round_line
from pncs_flower.simulations.run.in_process import InProcessGrid
from pncs_flower.simulations.run.strategy import build_strategy
from pncs_flower.simulations.run.training import train

CLIENTS = 8


def config(**settings: object) -> Config:
    given = {key.replace("_", "-"): value for key, value in settings.items()}
    return Config.from_run_config({**default_run_config(), "device": "cpu", "seed": 3, **given})


def run(folder: Path, settings: Config, workers: int = 1) -> list[dict]:
    folder.mkdir(exist_ok=True)
    with InProcessGrid(app, CLIENTS, settings.to_run_config(), workers=workers) as grid:
        train(grid, settings, folder, lambda row: None)
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]


def facts(rows: list[dict]) -> list[list]:
    names = ("clock", "simulated_seconds", "timeline", "clients", "chosen", "delivered", "accuracy")
    return [[row[name] for name in names] for row in rows]


@pytest.mark.parametrize("strategy", ["pncs", "oort"])
def test_clock_of_workers_and_of_a_run_that_goes_on_is_that_of_one_process(tmp_path, strategy):
    settings = config(
        strategy=strategy, num_rounds=6, devices="phones", extra=1, deadline=20.0, local_epochs=2
    )
    whole = run(tmp_path / "whole", settings)
    assert facts(run(tmp_path / "workers", settings, workers=2)) == facts(whole)
    run(tmp_path / "parts", replace(settings, num_rounds=3))
    assert facts(run(tmp_path / "parts", replace(settings, resume=True))) == facts(whole)


def test_reference_client_says_what_it_goes_through(tmp_path):
    settings = config(strategy="round-robin", num_rounds=1, devices="uniform", local_epochs=3)
    (row,) = run(tmp_path, settings)
    for client in row["chosen"]:
        _, received, computed, _ = row["timeline"][client]["training"]
        examples = (computed - received) * 100  # a second
        assert examples / 3 == pytest.approx(round(examples / 3), abs=1e-3)
        assert examples > 3 * 50


def test_results_have_the_simulated_time(tmp_path):
    rows = run(tmp_path / "on", config(num_rounds=2, devices="cross-silo"))
    summary = json.loads((tmp_path / "on" / "summary.json").read_text())
    total = math.fsum(second for row in rows for second in row["simulated_seconds"].values())
    assert summary["simulated-seconds"] == total > 0
    assert "of simulated time" in str(final_table(tmp_path / "on").caption)
    assert "  simulated " in round_line(rows[-1], 2)
    (row,) = run(tmp_path / "off", config(num_rounds=1))
    assert json.loads((tmp_path / "off" / "summary.json").read_text())["simulated-seconds"] is None
    assert "simulated" not in str(final_table(tmp_path / "off").caption)
    assert "simulated" not in round_line(row, 1)


def test_settings_become_options():
    options = build_strategy(config(devices="phones", deadline=5.0, extra=2)).options
    assert (options.devices, options.deadline, options.extra) == ("phones", 5.0, 2)
    options = build_strategy(config(devices="uniform")).options
    assert (options.devices, options.deadline, options.extra) == ("uniform", None, 0)
    # As an axis of a sweep has it, where the other values have a use for them.
    options = build_strategy(config(devices="none", deadline=5.0, extra=2)).options
    assert (options.devices, options.deadline, options.extra) == (None, None, 0)


def test_what_is_not_read_without_devices_is_told():
    assert unused_settings(config(deadline=5.0, extra=2)) == {
        "devices = none": ["deadline", "extra"]
    }
    for devices in (*FLEETS, "some.csv"):
        assert unused_settings(config(devices=devices, deadline=5.0)) == {}


def test_fleets_are_the_presets():
    assert tuple(PRESETS) == FLEETS


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"devices": "phone"}, "did you mean 'phones'"),
        ({"devices": ""}, "must be none, phones"),
        ({"devices": "phones", "deadline": -1.0}, "deadline"),
        ({"devices": "phones", "deadline": math.inf}, "deadline"),
        ({"devices": "phones", "extra": -1}, "extra"),
    ],
)
def test_bad_settings_are_refused(settings, words):
    with pytest.raises(ValueError, match=words):
        config(**settings)
