"""A run that is killed and started again ends as if nothing had happened."""

import io
import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from apps import numpy_app, resumable_run, storing_run
from flwr.app import ArrayRecord
from flwr.serverapp.strategy import (
    DifferentialPrivacyServerSideFixedClipping,
    FedAdam,
    FedAvg,
)

from pncs_flower.clients import summary_mod
from pncs_flower.simulations.run.in_process import InProcessGrid
from pncs_flower.strategies import (
    GradientMemory,
    RoundRobin,
    SelectionError,
    UniformSelection,
    record,
)
from pncs_flower.strategies.record import append_line

TESTS = Path(__file__).resolve().parents[2]
KILLS = int(os.environ.get("PNCS_KILLS", "4"))


def start(folder, rounds: int, kind=RoundRobin, **options):
    strategy = kind(FedAvg(fraction_evaluate=0.0), checkpoint=folder, seed=3, **options)
    grid = InProcessGrid(numpy_app.make_app(summary_mod), 6)
    result = strategy.start(grid, numpy_app.initial_arrays(), num_rounds=rounds)
    return strategy, result


@pytest.mark.parametrize("kind", [RoundRobin, UniformSelection, GradientMemory])
def test_stopping_after_any_round_and_going_on_changes_nothing(tmp_path, kind):
    whole, result = start(None, 6, kind)
    for stop in range(1, 6):
        folder = tmp_path / str(stop)
        start(folder, stop, kind)
        resumed, resumed_result = start(folder, 6, kind)
        assert [r.chosen for r in resumed.history] == [r.chosen for r in whole.history]
        assert resumed_result.arrays == result.arrays


def test_a_run_that_is_done_is_not_run_again(tmp_path):
    _, result = start(tmp_path, 3)
    strategy, again = start(tmp_path, 3)
    assert again.arrays == result.arrays
    assert len(strategy.history) == 3


@pytest.mark.minutes
@pytest.mark.parametrize("app", [resumable_run, storing_run])
def test_killed_at_random_moments_it_ends_with_the_same_bits(tmp_path, app):
    expected = app.run(None)
    paths = [str(TESTS), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    moments = random.Random(KILLS)
    kills, attempt = 0, 0
    while kills < KILLS:
        attempt += 1
        folder = tmp_path / str(attempt)
        for _ in range(200):
            process = subprocess.Popen(
                [sys.executable, app.__file__, str(folder)],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            if kills < KILLS:
                _wait_for_progress(process, folder)
                time.sleep(moments.uniform(0, 0.3))
                if process.poll() is None:
                    process.send_signal(signal.SIGKILL)
                    kills += 1
            output, _ = process.communicate(timeout=60)
            if process.returncode == 0:
                break
        assert output.split() == ["digest", expected]


def test_round_that_was_recorded_but_not_saved_is_recorded_once(tmp_path):
    path = tmp_path / "history.jsonl"
    start(None, 1, history_path=path)  # as a run leaves it that is killed before it can save
    start(tmp_path / "checkpoint", 3, history_path=path)
    rounds = [json.loads(line)["round"] for line in path.read_text().splitlines()]
    assert rounds == [1, 2, 3]


def _wait_for_progress(process: subprocess.Popen, folder: Path) -> None:
    """Wait until the run has written something new, so that imports are not all that is killed."""
    before = set(folder.glob("*")) if folder.exists() else set()
    while (
        process.poll() is None and (set(folder.glob("*")) if folder.exists() else set()) <= before
    ):
        time.sleep(0.01)


def newest(folder: Path) -> Path:
    return max(folder.glob("*.checkpoint"))


@pytest.mark.parametrize("damage", ["truncated", "flipped bit", "empty", "other format"])
def test_damaged_newest_checkpoint_falls_back_to_the_one_before(tmp_path, damage, caplog):
    _, result = start(None, 6)
    start(tmp_path, 4)
    path = newest(tmp_path)
    data = bytearray(path.read_bytes())
    if damage == "truncated":
        data = data[: len(data) // 2]
    elif damage == "flipped bit":
        data[-100] ^= 1
    elif damage == "empty":
        data = bytearray()
    else:
        data[:17] = b"pncs-checkpoint 8"
    path.write_bytes(data)
    _, resumed = start(tmp_path, 6)
    assert resumed.arrays == result.arrays
    assert f"Going on from the one before, as of {path.name}: " in caplog.text


def test_all_checkpoints_damaged_is_an_error_that_says_what_to_do(tmp_path):
    start(tmp_path, 3)
    for path in tmp_path.glob("*.checkpoint"):
        path.write_bytes(b"")
    with pytest.raises(ValueError, match="Remove that folder to start from the first round"):
        start(tmp_path, 6)


class Payload:
    """What runs code when it is read as a pickle."""

    def __init__(self, made: Path) -> None:
        self.made = made

    def __reduce__(self):
        return os.mkdir, (str(self.made),)


def test_pickle_in_a_checkpoint_with_the_right_checksum_is_not_read(tmp_path):
    payload = np.array([Payload(tmp_path / "made")])
    start(tmp_path, 2)
    for path in tmp_path.glob("*.checkpoint"):
        head, _, body = path.read_bytes().partition(b"\n")
        with np.load(io.BytesIO(body), allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        changed = io.BytesIO()
        np.savez(changed, **arrays | {"array-0": payload})
        head = head.rpartition(b" ")[0] + b" " + sha256(changed.getvalue()).hexdigest().encode()
        path.write_bytes(head + b"\n" + changed.getvalue())
    with pytest.raises(ValueError, match="Object arrays cannot be loaded"):
        start(tmp_path, 3)
    assert not payload[0].made.exists()


def test_a_folder_with_the_name_of_a_checkpoint_is_none(tmp_path):
    (tmp_path / "round-00000009.checkpoint").mkdir()
    _, result = start(None, 4)
    start(tmp_path, 3)
    _, resumed = start(tmp_path, 4)
    assert resumed.arrays == result.arrays


def test_the_last_two_are_kept_and_nothing_half_written(tmp_path):
    start(tmp_path, 5)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "lock",
        "round-00000004.checkpoint",
        "round-00000005.checkpoint",
        "rounds.log",
    ]


def test_full_disk_costs_the_checkpoint_but_not_the_run(tmp_path, monkeypatch):
    _, result = start(None, 6)
    start(tmp_path, 2)

    def full(descriptor):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        strategy, _ = start(tmp_path, 4)
    assert "No space left on device" in strategy.history[-2].notes[-1]
    assert newest(tmp_path).name == "round-00000002.checkpoint"
    assert not list(tmp_path.glob("*.partial"))
    assert start(tmp_path, 6)[1].arrays == result.arrays


def test_full_disk_costs_the_line_of_a_history_but_not_the_run(tmp_path, monkeypatch):
    path = tmp_path / "history.jsonl"
    append = record.append_line

    def full(path, line):
        if json.loads(line)["round"] == 2:
            raise OSError(28, "No space left on device")
        append(path, line)

    monkeypatch.setattr(record, "append_line", full)
    strategy = RoundRobin(FedAvg(fraction_evaluate=0.0), history_path=path, seed=3)
    grid = InProcessGrid(numpy_app.make_app(summary_mod), 6)
    strategy.start(grid, numpy_app.initial_arrays(), num_rounds=3)
    assert "No space left on device" in strategy.history[1].notes[-1]
    lines = path.read_text().splitlines()
    assert [json.loads(line)["round"] for line in lines] == [1, 3]


def test_line_that_did_not_fit_on_a_full_disk_is_written_as_soon_as_it_does(tmp_path, monkeypatch):
    path = tmp_path / "history.jsonl"
    append, tries = record.append_line, []

    def full_once(path, line):
        tries.append(json.loads(line)["round"])
        if tries.count(2) == 1:
            tries.append(2)
            raise OSError(28, "No space left on device", str(path))
        append(path, line)

    monkeypatch.setattr(record, "append_line", full_once)
    strategy = RoundRobin(FedAvg(), history_path=path, seed=3)
    grid = InProcessGrid(numpy_app.make_app(summary_mod), 6)
    strategy.start(grid, numpy_app.initial_arrays(), num_rounds=3)
    records = [json.loads(line) for line in path.read_text().splitlines()]
    assert records == [record.to_dict() for record in strategy.history]
    assert f"not written to {path} at once" in records[1]["notes"][-1]


def test_line_that_could_not_be_written_whole_is_taken_back(tmp_path):
    path = tmp_path / "history.jsonl"
    append_line(path, b"a round\n")
    before = path.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 5, limits[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            append_line(path, b"x" * 100 + b"\n")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert path.read_bytes() == before


def test_second_start_from_a_folder_is_refused_while_the_first_writes_to_it(tmp_path):
    refused = []

    def evaluate(server_round, arrays):
        if server_round == 1:
            with pytest.raises(ValueError, match=r"another process still writes .*fuser"):
                start(tmp_path, 4)
            refused.append(server_round)

    strategy = RoundRobin(FedAvg(fraction_evaluate=0.0), checkpoint=tmp_path, seed=3)
    grid = InProcessGrid(numpy_app.make_app(summary_mod), 6)
    strategy.start(grid, numpy_app.initial_arrays(), num_rounds=2, evaluate_fn=evaluate)
    assert refused == [1]


def test_checkpoint_of_other_settings_is_refused(tmp_path):
    start(tmp_path, 2)
    with pytest.raises(ValueError, match=r"\.num_selected: saved 2, given 3\)"):
        start(tmp_path, 4, num_selected=3)


def test_checkpoint_of_another_base_strategy_is_refused(tmp_path):
    start(tmp_path, 2)
    strategy = RoundRobin(FedAdam(fraction_evaluate=0.0), checkpoint=tmp_path, seed=3)
    grid = InProcessGrid(numpy_app.make_app(summary_mod), 6)
    with pytest.raises(ValueError, match=r"base: saved 'FedAvg', given 'FedAdam'"):
        strategy.start(grid, numpy_app.initial_arrays(), num_rounds=4)


def test_checkpoint_of_another_model_is_refused(tmp_path):
    start(tmp_path, 1)
    strategy = RoundRobin(FedAvg(fraction_evaluate=0.0), checkpoint=tmp_path, seed=3)
    grid = InProcessGrid(numpy_app.make_app(summary_mod), 6)
    refusal = r"the model's body.weight: saved 'float32 \(3, 4\)', given nothing"
    with pytest.raises(ValueError, match=refusal):
        strategy.start(grid, ArrayRecord([np.zeros(3, np.float32)]), num_rounds=2)


def test_wrapper_outside_cannot_resume_and_says_so(tmp_path):
    inner = UniformSelection(FedAvg(fraction_evaluate=0.0), checkpoint=tmp_path)
    outer = DifferentialPrivacyServerSideFixedClipping(inner, 0.1, 1.0, num_sampled_clients=2)
    grid = InProcessGrid(numpy_app.make_app(summary_mod), 4)
    with pytest.raises(SelectionError, match="Make the selection strategy the outermost"):
        outer.start(grid, numpy_app.initial_arrays(), num_rounds=1)
