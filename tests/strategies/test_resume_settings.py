"""A run is taken up with the same settings only; the error names what differs, with both values."""

from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from apps import numpy_app
from flwr.app import Array, ArrayRecord, ConfigRecord
from flwr.serverapp.strategy import (
    DifferentialPrivacyServerSideFixedClipping,
    FedAdam,
    FedAvg,
    FedAvgM,
)

from pncs_flower.clients import summary_mod
from pncs_flower.simulations.run.in_process import InProcessGrid
from pncs_flower.strategies import PNCS, RoundRobin
from pncs_flower.strategies.options import CheckedOptions
from pncs_flower.strategies.resume.settings import MAY_DIFFER


def start(folder: Any, base: Any = None, kind: Any = PNCS, rounds: int = 1, **given: Any):
    """Start a run; what ``start`` takes is told from the options by its name."""
    own = {k: given.pop(k) for k in ("train_config", "evaluate_config") if k in given}
    arrays = given.pop("arrays", numpy_app.initial_arrays())
    base = FedAvg(fraction_evaluate=0.0) if base is None else base
    strategy = kind(base, checkpoint=folder, **{"num_selected": 2, **given})
    grid = InProcessGrid(numpy_app.make_app(summary_mod), 5)
    result = strategy.start(grid, arrays, num_rounds=rounds, **own)
    return strategy, result


def mean_of_losses(records, key):
    raise AssertionError


def model(**changes: Any) -> ArrayRecord:
    arrays = {name: array.numpy() for name, array in numpy_app.initial_arrays().items()} | changes
    return ArrayRecord({name: Array(values) for name, values in arrays.items()})


ADAM = {"fraction_evaluate": 0.0, "eta": 0.1}
MOMENTUM = {"fraction_evaluate": 0.0, "server_momentum": 0.9}
OTHERS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "parameter of the rule": ({}, {"p": 2}, r"PNCSRule\.p: saved 4, given 2"),
    "sketch": ({}, {"sketch": "count:8", "p": 2}, r"PNCSRule\.sketch: saved '.*', given 'count:8'"),
    "rule": ({}, {"kind": RoundRobin}, "rule: saved 'PNCSRule', given 'RoundRobinRule'"),
    "base": ({}, {"base": FedAdam(**ADAM)}, "base: saved 'FedAvg', given 'FedAdam'"),
    "its setting": (
        {"base": FedAdam(**ADAM)},
        {"base": FedAdam(**{**ADAM, "eta": 0.01})},
        r"\(FedAdam\.eta: saved 0\.1, given 0\.01\)",
    ),
    "its momentum": (
        {"base": FedAvgM(**MOMENTUM)},
        {"base": FedAvgM(**{**MOMENTUM, "server_momentum": 0.5})},
        r"\(FedAvgM\.server_momentum: saved 0\.9, given 0\.5\)",
    ),
    "its function": (
        {},
        {"base": FedAvg(fraction_evaluate=0.0, train_metrics_aggr_fn=mean_of_losses)},
        r"FedAvg\.train_metrics_aggr_fn: saved <function .*given <function mean_of_losses>",
    ),
    "setting of a wrapper's base": (
        {
            "base": DifferentialPrivacyServerSideFixedClipping(
                FedAvgM(**MOMENTUM), 0.0, 1.0, num_sampled_clients=2
            )
        },
        {
            "base": DifferentialPrivacyServerSideFixedClipping(
                FedAvgM(**{**MOMENTUM, "server_momentum": 0.5}), 0.0, 1.0, num_sampled_clients=2
            )
        },
        r"\(FedAvgM\.server_momentum: saved 0\.9, given 0\.5\)",
    ),
    "training's config": (
        {"train_config": ConfigRecord({"lr": 0.5})},
        {"train_config": ConfigRecord({"lr": 0.25})},
        r"\(train_config\['lr'\]: saved 0\.5, given 0\.25\)",
    ),
    "entry of training's config": (
        {},
        {"train_config": ConfigRecord({"lr": 0.25})},
        r"\(train_config\['lr'\]: saved nothing, given 0\.25\)",
    ),
    "evaluation's config": (
        {"evaluate_config": ConfigRecord({"batch": 8})},
        {"evaluate_config": ConfigRecord({"batch": 4})},
        r"\(evaluate_config\['batch'\]: saved 8, given 4\)",
    ),
    "shape": (
        {},
        {"arrays": model(**{"head.bias": np.zeros(3, np.float32)})},
        r"\(the model's head\.bias: saved 'float32 \(2,\)', given 'float32 \(3,\)'\)",
    ),
    "dtype": (
        {},
        {"arrays": numpy_app.initial_arrays("float64")},
        r"the model's body\.weight: saved 'float32 \(3, 4\)', given 'float64 \(3, 4\)'",
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_setting_is_refused_with_its_name_and_both_values(tmp_path, name):
    before, after, message = OTHERS[name]
    start(tmp_path, **before)
    with pytest.raises(ValueError, match=message):
        start(tmp_path, rounds=2, **after)


OPTIONS: dict[str, Any] = {
    "queue_length": 2,
    "seed": 1,
    "min_summaries": 2,
    "on_too_few_summaries": "stop",
    "min_updates": 2,
    "max_weight": 50.0,
    "clip_norm": 1.0,
    "verify_sketches": True,
}


@pytest.mark.parametrize(
    "name", [f.name for f in fields(CheckedOptions) if f.name not in MAY_DIFFER]
)
def test_other_option_is_refused_unless_it_may_differ(tmp_path, name):
    start(tmp_path)
    with pytest.raises(ValueError, match=rf"\({name}: saved .*, given {OPTIONS[name]!r}\)"):
        start(tmp_path, rounds=2, **{name: OPTIONS[name]})


def test_options_that_may_differ_change_nothing(tmp_path):
    _, whole = start(None, rounds=3)
    start(tmp_path / "saved")
    others: dict[str, Any] = {
        "wait_timeout": 5.0,
        "start_timeout": 50.0,
        "summary_timeout": 5.0,
        "history_path": tmp_path / "history.jsonl",
        "min_clients": 3,
        "eligible": lambda key: True,
        "max_summary_bytes": 10**6,
        "max_empty_rounds": 9,
        "ride_along": False,
    }
    assert {"checkpoint", *others} == MAY_DIFFER
    _, resumed = start(tmp_path / "saved", rounds=3, **others)
    assert resumed.arrays == whole.arrays


def test_many_differences_are_told_in_a_few_words(tmp_path):
    start(tmp_path)
    with pytest.raises(ValueError, match=r"; and [0-9]+ more"):
        start(tmp_path, rounds=2, arrays=numpy_app.initial_arrays("float64"), seed=1, clip_norm=1.0)


def test_run_of_another_release_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("pncs_flower.strategies.resume.settings.version", lambda name: "0.1.0")
    start(tmp_path)
    monkeypatch.setattr("pncs_flower.strategies.resume.settings.version", lambda name: "0.0.1")
    refusal = r"\(release of pncs-flower: saved '0\.1\.0', given '0\.0\.1'\)"
    with pytest.raises(ValueError, match=refusal):
        start(tmp_path, rounds=2)


class Timed(FedAvg):
    """Differs from start to start in what does not matter."""

    not_in_checkpoint = ("started",)
    starts = 0

    def __init__(self) -> None:
        super().__init__(fraction_evaluate=0.0)
        Timed.starts += 1
        self.started = float(Timed.starts)
        self.noise = np.random.default_rng(Timed.starts)
        self.first = np.full(3, Timed.starts)


class Stamped(FedAvg):
    def __init__(self, folder: str) -> None:
        super().__init__(fraction_evaluate=0.0)
        self.folder = folder


def test_error_says_what_to_do_with_an_attribute_that_differs_by_its_nature(tmp_path):
    start(tmp_path, base=Stamped("12:00"))
    remedy = r"saved '12:00', given '12:01'.*not_in_checkpoint of its class names"
    with pytest.raises(ValueError, match=remedy):
        start(tmp_path, base=Stamped("12:01"), rounds=2)
    with pytest.raises(ValueError, match=r"use another folder$"):
        start(tmp_path, base=Stamped("12:00"), rounds=2, seed=1)


def test_what_differs_from_start_to_start_is_no_setting(tmp_path):
    start(tmp_path, base=Timed())
    base = Timed()
    start(tmp_path, base=base, rounds=2)
    assert base.started == Timed.starts  # as it was made
    assert base.first.tolist() == [Timed.starts - 1] * 3  # as it was saved, though nothing used it
