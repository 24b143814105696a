"""Workers that share GPUs, rehearsed: the GPUs are only counted, and clients compute on the CPU."""

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from pncs_flower.clients.device import choose_device
from pncs_flower.simulations.cli import engines
from pncs_flower.simulations.config import Config, default_run_config
from pncs_flower.simulations.run import preflight
from pncs_flower.simulations.run.folder import read_rounds
from pncs_flower.simulations.run.in_process import InProcessGrid

CONFIG = Config.from_run_config(default_run_config() | {"num-rounds": 1})


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the driver count two GPUs, and make it an error to ask CUDA itself."""

    def started() -> int:
        raise AssertionError("CUDA was started, and cannot be used in a process forked later")

    monkeypatch.setattr(torch.cuda, "_is_compiled", lambda: True)
    monkeypatch.setattr(torch.cuda, "_device_count_nvml", lambda: 2)
    monkeypatch.setattr(torch._C, "_cuda_getDeviceCount", started, raising=False)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(preflight, "free_gpu_memory", lambda: 2 * 10**9)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def told_by(app_tells: Any, clients: int, workers: int) -> list[Any]:
    """Return what each client tells of the worker that plays it."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        time.sleep(0.1)  # so that each worker has its share
        told = ConfigRecord({"told": app_tells(), "process": os.getpid()})
        return Message(RecordDict({"told": told}), reply_to=message)

    with InProcessGrid(app, clients, workers=workers) as grid:
        messages = [Message(RecordDict(), node, "train") for node in grid.get_node_ids()]
        replies = [reply.content["told"] for reply in grid.send_and_receive(messages)]
    assert len({reply["process"] for reply in replies}) == workers
    return [reply["told"] for reply in replies]


@pytest.mark.usefixtures("gpus")
@pytest.mark.parametrize(
    ("visible", "seen"),
    [
        (None, ["0", "0", "1"]),
        ("3,5", ["3", "3", "5"]),
        ("GPU-a,GPU-b", ["GPU-a", "GPU-a", "GPU-b"]),
    ],
)
def test_workers_take_turns_with_the_gpus(
    visible: str | None, seen: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    told = told_by(lambda: os.environ["CUDA_VISIBLE_DEVICES"], clients=3, workers=3)
    assert sorted(told) == seen
    assert os.environ.get("CUDA_VISIBLE_DEVICES") == visible


@pytest.mark.parametrize("count", [0, 1])
def test_where_there_is_no_choice_of_gpus_nothing_is_set(
    count: int, gpus: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "_device_count_nvml", lambda: count)
    assert told_by(lambda: os.environ.get("CUDA_VISIBLE_DEVICES", "-"), 2, 2) == ["-", "-"]


@pytest.mark.usefixtures("gpus")
@pytest.mark.parametrize(
    ("wanted", "clients", "device", "count", "share"),
    [
        (None, 10, "auto", 2, 1.0),
        (None, 10, "cuda", 2, 1.0),
        (None, 1, "cuda", 1, 0.0),  # this process
        (5, 10, "cuda", 5, 1 / 3),
        (5, 10, "cpu", 5, 0.0),
        (None, 1000, "cpu", preflight.usable_cpus(), 0.0),
    ],
)
def test_there_are_as_many_workers_as_gpus_if_nobody_says_it(
    wanted: int | None, clients: int, device: str, count: int, share: float
) -> None:
    placement = preflight.choose_workers(replace(CONFIG, device=device), clients, wanted)
    assert (placement.at_once, placement.gpus_per_client) == (count, pytest.approx(share))


@pytest.mark.usefixtures("gpus")
def test_more_workers_than_a_gpu_has_memory_for_are_refused_with_a_number_that_suffices() -> None:
    def check(wanted: int) -> None:
        placement = preflight.choose_workers(CONFIG, 10, wanted)
        preflight.check_run(CONFIG, 10, placement)

    with pytest.raises(ValueError, match=r"4 clients at once on a GPU .* workers = 2"):
        check(8)
    check(2)


@pytest.mark.usefixtures("gpus")
def test_a_whole_run_with_a_worker_for_each_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = tmp_path / "wanted"

    def on_cpu(device: str) -> torch.device:
        with wanted.open("a") as file:
            file.write(f"{device} {os.environ.get('CUDA_VISIBLE_DEVICES')}\n")
        return torch.device("cpu")

    monkeypatch.setattr("pncs_flower.clients.pytorch.choose_device", on_cpu)
    monkeypatch.setattr("pncs_flower.simulations.run.training.choose_device", choose_cpu)
    config = replace(CONFIG, output_dir=str(tmp_path / "run"))
    engines.run_in_process(config, 4, {})
    assert "4 clients, in 2 worker processes" in capsys.readouterr().out
    assert not any(row["rejected"] for row in read_rounds(tmp_path / "run"))
    assert {*wanted.read_text().splitlines()} == {"cuda 0", "cuda 1"}


def choose_cpu(device: str) -> torch.device:
    return torch.device("cpu")


def test_a_worker_gives_memory_back_when_it_has_nothing_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = tmp_path / "given"

    def give() -> None:
        with given.open("a") as file:
            file.write(f"{os.getpid()}\n")

    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return Message(RecordDict(), reply_to=message)

    def in_worker() -> bool:
        return os.getpid() != here

    here = os.getpid()
    monkeypatch.setattr(torch.cuda, "is_initialized", in_worker)
    monkeypatch.setattr(torch.cuda, "empty_cache", give)
    with InProcessGrid(app, 40, workers=2) as grid:
        messages = [Message(RecordDict(), node, "train") for node in grid.get_node_ids()]
        assert len([*grid.send_and_receive(messages)]) == 40
        deadline = time.monotonic() + 20
        while not given.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
    assert 1 <= len(given.read_text().splitlines()) < 20  # and not after each of the messages


def test_a_process_that_has_used_cuda_is_told_that_its_workers_cannot(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    with InProcessGrid(ClientApp(), 2, workers=2):
        pass
    assert "has used CUDA" in caplog.text


def test_a_process_forked_from_one_with_cuda_says_why_it_has_no_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "_is_in_bad_fork", lambda: True)
    with pytest.raises(RuntimeError, match="forked from one that had CUDA in use"):
        choose_device("cuda")
