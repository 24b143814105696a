"""A run is taken up with the same settings only; the error names what differs, with both values."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
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
from pncs_flower.strategies.options import SelectionOptions
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
    "combine": "fedvarp",
    "verify_sketches": True,
}


@pytest.mark.parametrize(
    "name",
    [
        each.name
        for each in fields(SelectionOptions)
        if each.name not in {*MAY_DIFFER, "rest_rounds", "devices", "deadline", "extra"}
    ],
)
def test_other_option_is_refused_unless_it_may_differ(tmp_path, name):
    start(tmp_path)
    with pytest.raises(ValueError, match=rf"\({name}: saved .*, given {OPTIONS[name]!r}\)"):
        start(tmp_path, rounds=2, **{name: OPTIONS[name]})


def test_other_devices_deadline_or_extra_are_refused(tmp_path):
    start(tmp_path / "off")
    with pytest.raises(ValueError, match=r"\(devices: saved None, given 'DrawnDevices"):
        start(tmp_path / "off", rounds=2, devices="uniform")
    start(tmp_path / "on", devices="uniform")
    for name, saved, given in (("deadline", None, 90.0), ("extra", 0, 1)):
        with pytest.raises(ValueError, match=rf"\({name}: saved {saved}, given {given}\)"):
            start(tmp_path / "on", rounds=2, devices="uniform", **{name: given})


def test_a_rest_in_rounds_is_the_length_of_the_queue_said_otherwise(tmp_path):
    start(tmp_path, queue_length=4)
    with pytest.raises(ValueError, match=r"\(queue_length: saved 4, given 2\)"):
        start(tmp_path, rounds=2, rest_rounds=1)
    _, resumed = start(tmp_path, rounds=3, rest_rounds=2)
    _, whole = start(None, rounds=3, queue_length=4)
    assert resumed.arrays == whole.arrays


def test_a_length_that_follows_the_clients_is_none_of_a_number(tmp_path):
    start(tmp_path, queue_length=4)  # as the default once was
    with pytest.raises(ValueError, match=r"\(queue_length: saved 4, given None\): go on with the"):
        start(tmp_path, rounds=2)
    start(tmp_path, rounds=2, queue_length=4)


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
        "on_record": print,
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


class Scheduled(FedAvg):
    """Has something to choose its learning rate with."""

    def __init__(self, schedule: Any) -> None:
        super().__init__(fraction_evaluate=0.0)
        self.schedule = schedule


def with_generator(values: Any) -> Any:
    return [np.random.default_rng(), values]


TAKEN_UP = (
    "Scheduled.schedule was made otherwise than in the run that is taken up: what was saved is "
    "used. To change it, use another folder."
)


@pytest.mark.parametrize("make", [np.array, lambda v: {"lrs": np.array(v)}, "torch", "flower"])
def test_other_array_of_the_base_is_not_taken_silently(tmp_path, make, caplog):
    if make == "torch":
        make = pytest.importorskip("torch").tensor
    elif make == "flower":
        make = lambda values: ArrayRecord([np.array(values)])  # noqa: E731
    for rounds, rate in [(1, 0.1), (2, 0.1)]:
        start(tmp_path, Scheduled(make([rate, rate])), rounds=rounds)
    assert "made otherwise" not in caplog.text
    for rounds in (3, 4):  # what counts is how the first run made it, not the one that went on
        caplog.clear()
        base = Scheduled(make([0.01, 0.01]))
        start(tmp_path, base, rounds=rounds)
        assert caplog.text.count("made otherwise") == 1
        assert [r.message for r in caplog.records if r.message == TAKEN_UP] == [TAKEN_UP]
        if make is np.array:
            assert base.schedule.tolist() == [0.1, 0.1]
    caplog.clear()
    start(tmp_path, Scheduled(make([0.1, 0.1])), rounds=5)
    assert "made otherwise" not in caplog.text


def test_array_made_where_there_was_none_is_named_and_so_are_several(tmp_path, caplog):
    before, after = Scheduled(np.zeros(2)), Scheduled(np.ones(2))
    before.first, after.second = np.zeros(2), np.zeros(2)  # type: ignore[attr-defined]
    start(tmp_path, before)
    start(tmp_path, after, rounds=2)
    names = "Scheduled.schedule, Scheduled.first, Scheduled.second were made otherwise"
    assert caplog.text.count(names) == 1


@pytest.mark.parametrize("make", [np.random.default_rng, Path, with_generator])
def test_generators_and_paths_that_differ_are_no_warning(tmp_path, make, caplog):
    start(tmp_path, Scheduled(make(1 if make is not Path else "a")))
    start(tmp_path, Scheduled(make(2 if make is not Path else "b")), rounds=2)
    assert "made otherwise" not in caplog.text


def falling(first: Any, *, least: float = 0.001) -> Callable[[int], Any]:
    def rate(round_number: int, power: int = 2, *, scale: float = 1.0) -> Any:
        if round_number in {1, 2, 5} or str(round_number) in {"first", "second", "third"}:
            return first
        return max(least, scale / round_number**power)

    rate.__kwdefaults__ = {"scale": 1.0}
    return rate


def counting() -> Callable[[], int]:
    count = 0

    def asked() -> int:
        nonlocal count
        count += 1
        return asked() if count < 0 else count

    return asked


def with_default(value: Any) -> Callable[..., Any]:
    return lambda number, rate=value, *, scale=value: rate * scale


LAMBDAS: dict[str, tuple[Any, Any]] = {
    "constant": (lambda r: 0.1, lambda r: 0.01),
    "kind of constant": (lambda r: 1, lambda r: True),
    "sign of zero": (lambda r: 0.0, lambda r: -0.0),
    "name": (lambda r: min(r, 1), lambda r: max(r, 1)),
    "code": (lambda r: r + 1, lambda r: r * 1),
    "arguments": (lambda *r: r, lambda r: r),
    "function inside": (lambda r: [lambda: 0.1], lambda r: [lambda: 0.2]),
    "slice": (lambda r: r[1:2], lambda r: r[1:3]),
    "default": (with_default(0.1), with_default(0.2)),
    "closure": (falling(0.1), falling(0.01)),
    "another cell": (falling(0.1), falling(0.1, least=0.1)),
    "tuple in a closure": (falling((1, "a")), falling((1, "b"))),
    "number of NumPy's in a closure": (falling(np.float32(1)), falling(np.float32(2))),
    "function in a closure": (falling(lambda: 0.1), falling(lambda: 0.2)),
    "class in a closure": (falling(int), falling(float)),
}


@pytest.mark.parametrize("name", LAMBDAS)
def test_other_function_of_the_same_name_is_refused(tmp_path, name):
    before, after = LAMBDAS[name]
    start(tmp_path, Scheduled(before))
    start(tmp_path, Scheduled(before), rounds=2)
    refusal = r"\(Scheduled\.schedule: saved <function .*>, given <function .*> \(another one\)\)"
    with pytest.raises(ValueError, match=refusal):
        start(tmp_path, Scheduled(after), rounds=3)


SAME: dict[str, Callable[[], Any]] = {
    "lambda": lambda: lambda r: 0.1 if r in {"a", "b", "c", "d"} else min(r, 1),
    "closure": lambda: falling(0.1),
    "objects in a closure": lambda: falling([object(), np.zeros(2)]),
    "function that calls itself": counting,
    "default": lambda: with_default(object()),
}


@pytest.fixture(scope="module")
def of_another_process(tmp_path_factory):
    """What each leaves after its first round in a process with another hash seed."""
    folder = tmp_path_factory.mktemp("another-process")
    program = (
        "import sys; sys.path[:0] = sys.argv[2:]; import test_settings as t\n"
        "for name, make in t.SAME.items():\n"
        "    t.start(f'{sys.argv[1]}/{name}', t.Scheduled(make()))"
    )
    here = Path(__file__).parent
    paths = [str(folder), str(here), str(here.parents[1])]
    done = subprocess.run(
        [sys.executable, "-c", program, *paths],
        env={**os.environ, "PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return folder


@pytest.mark.parametrize("name", SAME)
def test_same_function_is_taken_up_from_a_process_with_another_hash_seed(of_another_process, name):
    strategy, _ = start(of_another_process / name, Scheduled(SAME[name]()), rounds=2)
    assert [record.round for record in strategy.history] == [1, 2]


def test_function_that_has_counted_is_still_the_same(tmp_path):
    asked = counting()
    start(tmp_path, Scheduled(asked))
    asked()
    start(tmp_path, Scheduled(asked), rounds=2)


def test_another_rule_or_base_is_all_that_a_refusal_names(tmp_path):
    start(tmp_path, base=FedAdam(**ADAM))
    had = r"had other settings \(%s\): go on with the same, or use another folder$"
    rule = "rule: saved 'PNCSRule', given 'RoundRobinRule'"
    base = "base: saved 'FedAdam', given 'FedAvgM'"
    with pytest.raises(ValueError, match=had % rule):
        start(tmp_path, base=FedAdam(**{**ADAM, "eta": 1.0}), kind=RoundRobin, rounds=2, seed=1)
    with pytest.raises(ValueError, match=had % base):
        start(tmp_path, base=FedAvgM(**MOMENTUM), rounds=2, seed=1)
    with pytest.raises(ValueError, match=had % f"{rule}; {base}"):
        start(tmp_path, base=FedAvgM(**MOMENTUM), kind=RoundRobin, rounds=2)


def test_fewer_rounds_than_there_are_is_said_plainly(tmp_path, caplog):
    _, whole = start(tmp_path, rounds=3)
    caplog.clear()
    _, fewer = start(tmp_path, rounds=2)
    words = "has 3 rounds already, more than the 2 asked for: nothing is left to do"
    assert [r.levelname for r in caplog.records if words in r.message] == ["WARNING"]
    assert fewer.arrays == whole.arrays
    start(tmp_path, rounds=3)
    assert "3 rounds done already" in caplog.text
    assert "Going on" not in caplog.text
