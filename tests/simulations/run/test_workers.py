"""Clients that are played by worker processes: no bit changes, and no process is left."""

import copy
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import psutil
import pytest
from apps import every_rule, numpy_app
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.serverapp.strategy import FedAvg
from typer.testing import CliRunner, Result

from pncs_flower.clients import summary_mod
from pncs_flower.clients.stored import NamelessFile
from pncs_flower.protocol import MARKER
from pncs_flower.randomness import derive_seed
from pncs_flower.simulations import cli
from pncs_flower.simulations.cli.engines import _flower_log
from pncs_flower.simulations.machine.signals import exit_on_signals
from pncs_flower.simulations.machine.watchdog import is_alive
from pncs_flower.simulations.run import workers as workers_module
from pncs_flower.simulations.run.folder import read_rounds
from pncs_flower.simulations.run.in_process import InProcessGrid
from pncs_flower.strategies import PNCS, DeadWorkerError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="workers need Linux")

FIRST = 1000  # the node of client 0


def app_of(function: Callable[[Message, Context], RecordDict]) -> ClientApp:
    """Return an app whose train function answers with these records."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return Message(function(message, context), reply_to=message)

    return app


def place(context: Context) -> int:
    return int(context.node_config["partition-id"])


def ask(grid: InProcessGrid, *clients: int, timeout: float | None = None, **records: Any) -> Any:
    """Send each client a message, and return the replies' contents or errors by client."""
    content = RecordDict(records)
    messages = [Message(content, FIRST + client, "train") for client in clients]
    replies = grid.send_and_receive(messages, timeout=timeout)
    return {
        reply.metadata.src_node_id - FIRST: reply.error if reply.has_error() else reply.content
        for reply in replies
    }


@pytest.mark.parametrize(
    ("name", "workers"), [(name, 2 + n % 2) for n, name in enumerate(every_rule.STRATEGIES)]
)
def test_every_rule_has_the_same_bits_with_any_number_of_workers(name: str, workers: int) -> None:
    in_one_process = every_rule.digest(every_rule.make(name))
    assert every_rule.digest(every_rule.make(name), workers) == in_one_process


def odd_records() -> dict[str, Any]:
    values = [-0.0, math.inf, 1e-320, 2**63, -5, 0.1]
    arrays = {
        "empty": np.zeros((3, 0), np.float16),
        "scalar": np.array(7),
        "bools": np.array([[True], [False]]),
        "": np.array([np.nan, -0.0], ">f8"),
    }
    record = ArrayRecord({name: Array(value) for name, value in arrays.items()})
    record["of no kind of NumPy's"] = Array("bf16", (2,), "torch", b"\x00pickle")
    record["nothing"] = Array("", (), "", b"")
    config = {"text": "\ud800 ü", "raw": b"\x00\xff", "many": [b"", b"1"], "yes": True, "whole": 3}
    metrics: dict[str, Any] = {str(value): value for value in values} | {"list": values[:3]}
    return {
        "arrays": record,
        "more/arrays": ArrayRecord({"again": record["scalar"]}),
        "config": ConfigRecord({**config, "none": []}),
        "metrics": MetricRecord(metrics),
        "empty": ArrayRecord(),
    }


def test_records_of_all_kinds_come_and_go_and_stay_as_they_are() -> None:
    def echo(message: Message, context: Context) -> RecordDict:
        number = len(context.state)
        if number % 2:  # what was kept is delivered as it is, changed, and forgotten
            kept = RecordDict(dict(context.state))
            if place(context) == 2:  # as it is
                context.state.clear()
                return kept
            copied = copy.deepcopy(kept)
            assert copied == kept
            kept["arrays"]["more"] = Array(np.arange(3))
            context.state.clear()
            return kept
        context.state.update(message.content)
        return message.content

    told = []
    for workers in (1, 2):
        with InProcessGrid(app_of(echo), 3, workers=workers) as grid:
            replies = [ask(grid, 0, 1, 2, **odd_records()) for _ in range(4)]
            states = [context.state for context in grid.contexts.values()]
            told.append(repr((replies, states)))
            assert all(list(reply) == [0, 1, 2] for reply in replies)
    assert told[0] == told[1]
    assert "pickle" in told[0]


def test_a_client_keeps_its_state_wherever_it_is_played() -> None:
    def count(message: Message, context: Context) -> RecordDict:
        if message.content:
            time.sleep(0.2)  # so that others go elsewhere
        before = context.state.array_records.get("sum", ArrayRecord({"sum": Array(np.zeros(4))}))
        total = before["sum"].numpy() + 1 + place(context)
        context.state["sum"] = ArrayRecord({"sum": Array(total)})
        metrics = MetricRecord({"process": os.getpid(), "sum": float(total.sum())})
        return RecordDict({"metrics": metrics})

    with InProcessGrid(app_of(count), 5, workers=2) as grid:
        processes = []
        for number in range(1, 5):
            slow = {"slow": ConfigRecord()} if number == 3 else {}
            metrics = ask(grid, *(0, 2, 4, 1, 3)[:: 1 + number % 2], **slow)
            processes.append({c: each["metrics"]["process"] for c, each in metrics.items()})
        changed = ArrayRecord({"sum": Array(np.full(4, 100.0))})
        grid.contexts[FIRST].state = RecordDict({"sum": changed})
        last = ask(grid, *range(5))
    sums = [each["metrics"]["sum"] for each in last.values()]
    times = [sum(client in each for each in processes) + 1 for client in range(5)]
    assert times == [5, 3, 3, 5, 5]
    assert sums == [4 * 101.0, *(4.0 * (1 + client) * times[client] for client in range(1, 5))]
    assert len({process for each in processes for process in each.values()}) == 2


def test_messages_to_one_client_are_answered_one_after_the_other() -> None:
    def count(message: Message, context: Context) -> RecordDict:
        number = len(context.state)
        time.sleep(0.05 * (3 - number))
        context.state[str(number)] = ConfigRecord()
        return RecordDict({"number": ConfigRecord({"number": number})})

    with InProcessGrid(app_of(count), 2, workers=2) as grid:
        messages = [Message(RecordDict(), FIRST + n % 2, "train") for n in range(6)]
        replies = grid.send_and_receive(messages)
    assert [reply.content["number"]["number"] for reply in replies] == [0, 0, 1, 1, 2, 2]


def test_arrays_that_are_sent_to_many_are_read_once_by_each_worker() -> None:
    def tell(message: Message, context: Context) -> RecordDict:
        seen.append(message.content["model"]["w"])
        told = {"process": os.getpid(), "object": id(seen[-1]), "of": len({*map(id, seen)})}
        return RecordDict({"told": ConfigRecord(told)})

    seen: list[Array] = []
    model = ArrayRecord({"w": Array(np.ones(100))})
    with InProcessGrid(app_of(tell), 8, workers=2) as grid:
        for number in (1, 2):
            told = [each["told"] for each in ask(grid, *range(8), model=model).values()]
            assert all(each["of"] == number for each in told)
            assert len({(each["process"], each["object"]) for each in told}) <= 2
            model["w"].data = Array(np.zeros(100)).data  # the same object, another model


@pytest.mark.parametrize("workers", [1, 2])
def test_what_a_client_does_to_its_records_no_other_client_sees(workers: int) -> None:
    def spoil(message: Message, context: Context) -> RecordDict:
        seen = repr(message.content) + repr(context.run_config)
        message.content["model"]["w"] = Array(np.zeros(1))
        del message.content["model"]["b"]
        message.content["config"]["few"].append(3)
        message.content["config"]["lr"] = 2.0
        del message.content["other"]
        context.run_config["new"] = 1
        return RecordDict({"told": ConfigRecord({"seen": seen})})

    model = ArrayRecord({name: Array(np.ones(2)) for name in "wb"})
    config = ConfigRecord({"few": [1, 2], "lr": 0.1})
    records = {"model": model, "config": config, "other": MetricRecord()}
    with InProcessGrid(app_of(spoil), 6, {"seed": 1}, workers=workers) as grid:
        replies = [each for _ in range(2) for each in ask(grid, *range(6), **records).values()]
    assert len({reply["told"]["seen"] for reply in replies}) == 1


def test_a_client_that_is_refused_memory_is_an_error_reply() -> None:
    def take(message: Message, context: Context) -> RecordDict:
        if place(context) == 1:
            process = psutil.Process()
            room = process.memory_info().vms + 100_000_000
            process.rlimit(psutil.RLIMIT_AS, (room, psutil.RLIM_INFINITY))
            np.ones(1_000_000_000)
        return RecordDict()

    with InProcessGrid(app_of(take), 4, workers=2) as grid:
        for _ in range(2):
            replies = ask(grid, *range(4))
            assert "MemoryError" in replies[1].reason
            assert [c for c, reply in replies.items() if isinstance(reply, RecordDict)] == [0, 2, 3]


def test_bits_are_the_same_whoever_answers_first(monkeypatch: pytest.MonkeyPatch) -> None:
    def late(message: Message, context: Context, call_next: Any) -> Message:
        number = message.content.config_records.get(MARKER, {}).get("round", 0)
        time.sleep(derive_seed("late", number, place(context)) % 40 / 1000)
        return call_next(message, context)

    def weights(workers: int) -> tuple[ArrayRecord, list[list[str]]]:
        app = numpy_app.make_app(late, summary_mod)
        with InProcessGrid(app, 8, workers=workers) as grid:
            strategy = PNCS(FedAvg(), num_selected=3, queue_length=3, seed=1)
            result = strategy.start(grid, numpy_app.initial_arrays(), num_rounds=4)
        return result.arrays, [record.chosen for record in strategy.history]

    alone = weights(1)
    for workers, at_once in ((2, 1e9), (3, 0.0)):
        monkeypatch.setattr(workers_module, "_AT_ONCE", at_once)
        assert weights(workers) == alone


def test_an_app_that_raises_is_an_error_reply() -> None:
    def fail(message: Message, context: Context) -> RecordDict:
        context.state["kept"] = ConfigRecord()
        if place(context):
            raise OSError("no data\ud800")
        return None  # type: ignore[return-value]

    told = []
    for workers in (1, 2):
        with InProcessGrid(app_of(fail), 2, workers=workers) as grid:
            errors = ask(grid, 0, 1)
            told.append([(error.code, error.reason) for error in errors.values()])
            assert not any(context.state for context in grid.contexts.values())
    assert told[0] == told[1]
    assert [code for code, _ in told[0]] == [ErrorCode.CLIENT_APP_RAISED_EXCEPTION] * 2


@pytest.mark.parametrize("workers", [1, 2])
def test_an_app_that_exits_is_an_error_reply(workers: int) -> None:
    with InProcessGrid(dies(lambda: sys.exit("no data")), 4, workers=workers) as grid:
        replies = ask(grid, *range(4), die=ConfigRecord())
        assert replies[2].reason == "<class 'SystemExit'>:<'no data'>"
        assert [c for c, reply in replies.items() if isinstance(reply, RecordDict)] == [0, 1, 3]


@pytest.mark.parametrize("own", [True, False])
def test_a_signal_that_ends_the_process_while_it_plays_a_client_does_so(own: bool) -> None:
    before = {
        each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
    }
    signal.signal(signal.SIGTERM, lambda *about: sys.exit(0))
    grid = InProcessGrid(dies(lambda: signal.raise_signal(signal.SIGTERM)), 4)
    heeded = nullcontext() if own else exit_on_signals()
    try:
        with pytest.raises(SystemExit) as ended, heeded:
            ask(grid, *range(4), die=ConfigRecord())
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    assert ended.value.code == (0 if own else 128 + signal.SIGTERM)


def test_a_client_that_hangs_has_not_answered_and_does_again_later() -> None:
    def hang(message: Message, context: Context) -> RecordDict:
        if "hang" in message.content and place(context) == 1:
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGINT])
            time.sleep(1000)
        context.state[str(len(context.state))] = ArrayRecord({"w": Array(np.ones(3))})
        return RecordDict({"told": ConfigRecord({"states": len(context.state)})})

    with InProcessGrid(app_of(hang), 4, workers=2) as grid:
        assert list(ask(grid, *range(4))) == [0, 1, 2, 3]
        start = time.monotonic()
        replies = ask(grid, *range(4), timeout=1.0, hang=ConfigRecord())
        assert 1.0 <= time.monotonic() - start < 30
        assert list(replies) == [0, 2, 3]
        message = Message(RecordDict({"hang": ConfigRecord()}), FIRST + 1, "train", ttl=0.5)
        assert not list(grid.pull_messages(grid.push_messages([message])))
        states = [reply["told"]["states"] for reply in ask(grid, *range(4)).values()]
        assert states == [3, 2, 3, 3]
        assert len(psutil.Process().children(recursive=True)) >= 3


def test_of_many_quick_clients_only_the_one_that_hangs_has_not_answered() -> None:
    def hang(message: Message, context: Context) -> RecordDict:
        if "hang" in message.content and place(context) == 70:
            time.sleep(1000)
        context.state[str(len(context.state))] = ConfigRecord()
        return RecordDict({"told": ConfigRecord({"states": len(context.state)})})

    with InProcessGrid(app_of(hang), 100, workers=2) as grid:
        replies = ask(grid, *range(100), timeout=1.0, hang=ConfigRecord())
        assert list(replies) == [client for client in range(100) if client != 70]
        states = [reply["told"]["states"] for reply in ask(grid, *range(100)).values()]
        assert states == [1 if client == 70 else 2 for client in range(100)]


@pytest.mark.parametrize(("at_once", "played"), [(1e9, [5, 5]), (0.0, [1, 9])])
def test_quick_clients_are_handed_out_in_equal_shares_and_behind_a_slow_one_nobody_waits(
    at_once: float, played: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    others, done = os.pipe()

    def play(message: Message, context: Context) -> RecordDict:
        if place(context):
            os.write(done, b".")
        elif not at_once:
            for _ in range(9):  # it takes as long as all others together
                os.read(others, 1)
        return RecordDict({"told": ConfigRecord({"process": os.getpid()})})

    monkeypatch.setattr(workers_module, "_AT_ONCE", at_once)
    with InProcessGrid(app_of(play), 10, workers=2) as grid:
        for _ in range(2):  # in the first, nothing is known of them
            told = ask(grid, *range(10), timeout=60.0).values()
    assert sorted(Counter(each["told"]["process"] for each in told).values()) == played


def test_a_time_limit_is_each_clients_own_and_not_that_of_several() -> None:
    def wait(message: Message, context: Context) -> RecordDict:
        time.sleep(0.001 if place(context) < 60 else 0.3)
        return RecordDict()

    with InProcessGrid(app_of(wait), 70, workers=2) as grid:
        assert len(ask(grid, *range(70), timeout=0.9)) == 70


def dies(how: Callable[[], object], of: int = 2) -> ClientApp:
    def die(message: Message, context: Context) -> RecordDict:
        if "die" in message.content and place(context) == of:
            how()
        return RecordDict()

    return app_of(die)


@pytest.mark.parametrize(
    ("how", "told"),
    [
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "SIGKILL"),
        (lambda: os._exit(7), "exit code 7"),
    ],
)
@pytest.mark.parametrize("client", [2, 70])
def test_a_worker_that_dies_is_an_error_that_names_the_client(
    how: Callable[[], object], told: str, client: int
) -> None:
    with InProcessGrid(dies(how, of=client), 100, workers=2) as grid:
        for _ in range(2):
            named = rf"died \({told}\) while it played client {client}\. .*workers=.*--workers"
            with pytest.raises(DeadWorkerError, match=named) as caught:
                ask(grid, *range(100), die=ConfigRecord())
            # Which command goes on says the command, as none but pncs run has checkpoints.
            assert "pncs" not in f"{caught.value} {caught.value.__notes__}"
            assert list(ask(grid, *range(100))) == [*range(100)]


def test_a_worker_that_is_killed_while_it_has_nothing_to_do_is_told_too() -> None:
    with InProcessGrid(dies(lambda: None), 2, workers=2) as grid:
        before = set(psutil.Process().children(recursive=True))
        ask(grid, 0, 1)
        for worker in set(psutil.Process().children(recursive=True)) - before:
            worker.kill()
        # Which of the two is named is which is found to be gone first.
        with pytest.raises(DeadWorkerError, match=r"SIGKILL.* it played client [01]"):
            ask(grid, 0, 1)


def test_a_channel_that_fails_again_and_again_has_ended() -> None:
    class Broken:
        calls = 0

        def recvmsg(self, *arguments: Any) -> NoReturn:
            self.calls += 1
            raise ConnectionResetError

    channel = Broken()
    assert workers_module._receive(channel) == ((0, 0), [])  # type: ignore[arg-type]
    assert channel.calls == 2


def test_programs_that_are_started_have_none_of_the_files_of_workers() -> None:
    def for_programs() -> list[int]:
        found = []
        for number in map(int, os.listdir("/proc/self/fd")):
            with suppress(OSError):  # what listed them
                found += [number] * os.get_inheritable(number)
        return found

    def keep(message: Message, context: Context) -> RecordDict:
        context.state["kept"] = ArrayRecord({"w": Array(np.ones(3))})
        return RecordDict({"told": ConfigRecord({"files": for_programs()})})

    before = for_programs()
    with InProcessGrid(app_of(keep), 4, workers=2) as grid:
        replies = [each for _ in range(2) for each in ask(grid, *range(4)).values()]
        assert for_programs() == before
    assert [reply["told"]["files"] for reply in replies] == [before] * 8


def test_a_run_whose_worker_died_goes_on_where_it_stopped(tmp_path: Path) -> None:
    def die(message: Message, context: Context, call_next: Any) -> Message:
        marker = message.content.config_records.get(MARKER, {})
        if marker.get("round") == 3 and place(context) == 1 and not (tmp_path / "died").exists():
            (tmp_path / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return call_next(message, context)

    def start(workers: int, *mods: Any, **options: Any) -> Any:
        with InProcessGrid(numpy_app.make_app(*mods), 6, workers=workers) as grid:
            strategy = PNCS(FedAvg(), num_selected=2, queue_length=0, seed=1, **options)
            return strategy.start(grid, numpy_app.initial_arrays(), num_rounds=5).arrays

    whole = start(1, summary_mod)
    with pytest.raises(DeadWorkerError, match="client 1"):
        start(2, die, summary_mod, checkpoint=tmp_path / "run")
    assert start(3, die, summary_mod, checkpoint=tmp_path / "run") == whole


def test_a_grid_may_be_made_and_used_in_any_thread() -> None:
    grids: list[InProcessGrid] = []
    thread = threading.Thread(
        target=lambda: grids.append(InProcessGrid(dies(int), 2, workers=2)), daemon=True
    )
    thread.start()
    thread.join()
    time.sleep(0.2)
    with grids[0] as grid:
        assert list(ask(grid, 0, 1)) == [0, 1]


def test_a_client_may_have_a_grid_of_its_own() -> None:
    def nested(message: Message, context: Context) -> RecordDict:
        with InProcessGrid(dies(int), 2, workers=2) as grid:
            return RecordDict({"told": ConfigRecord({"replies": len(ask(grid, 0, 1))})})

    with InProcessGrid(app_of(nested), 3, workers=2) as grid:
        assert [each["told"]["replies"] for each in ask(grid, 0, 1, 2).values()] == [2, 2, 2]


def test_grids_are_closed_in_any_order() -> None:
    first, second = (InProcessGrid(dies(int), 2, workers=2) for _ in range(2))
    assert list(ask(first, 0, 1)) == list(ask(second, 0, 1)) == [0, 1]
    child = os.fork()
    if not child:
        del first  # it is not for this process to close it
        os._exit(0)
    os.waitpid(child, 0)
    assert list(ask(first, 0, 1)) == [0, 1]
    first.close()
    assert list(ask(second, 0, 1)) == [0, 1]
    second.close()


def test_bad_numbers_of_workers_and_closed_grids_are_errors() -> None:
    with pytest.raises(ValueError, match="workers is 0, but must be at least 1"):
        InProcessGrid(dies(int), 2, workers=0)
    with pytest.raises(ValueError, match="num_clients is -1, but must be at least 0"):
        InProcessGrid(dies(int), -1)
    for odd in (2.5, "2", None, True):
        with pytest.raises(TypeError, match=f"workers is {odd!r}, but must be a whole number"):
            InProcessGrid(dies(int), 2, workers=odd)
    with InProcessGrid(dies(int), 2, workers=2) as grid:
        pass
    with pytest.raises(ValueError, match="the grid is closed"):
        ask(grid, 0)


def test_a_grid_that_is_forgotten_leaves_no_process() -> None:
    before = psutil.Process().children(recursive=True)
    grid = InProcessGrid(dies(int), 2, workers=2)
    ask(grid, 0, 1)
    assert len(psutil.Process().children(recursive=True)) == len(before) + 3
    del grid
    assert psutil.Process().children(recursive=True) == before


SCRIPT = """
import os, signal, sys, time
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from pncs_flower.simulations import InProcessGrid

main, app = os.getpid(), ClientApp()
compute = dict

@app.train()
def train(message, context):
    assert os.getpid() != main
    client = context.node_config["partition-id"]
    # At once: Python's print writes its parts one by one where output is not buffered.
    sys.stdout.write(f"client {client} has begun\\n")
    sys.stdout.flush()
    if "raise" in message.content and client == 1:
        raise OSError("no data there")
    if "hang" in message.content:
        while True:
            pass
    return Message(RecordDict({"told": ConfigRecord(compute())}), reply_to=message)

def ask(grid, **records):
    messages = [Message(RecordDict(records), 1000 + n, "train") for n in range(4)]
    return list(grid.send_and_receive(messages))
"""


def start(code: str, *, of: str = "script.py", folder: Path) -> subprocess.Popen[str]:
    """Run a user's script, which has no main guard, or what a notebook does."""
    path = folder / of
    path.write_text(SCRIPT + code)
    return subprocess.Popen(
        [sys.executable, str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    try:
        out, err = process.communicate(timeout=200)
    finally:
        process.kill()
    return process.returncode, out, err


@pytest.mark.minutes
def test_a_script_without_main_guard_has_its_prints_and_tracebacks(tmp_path: Path) -> None:
    code = """
import torch

torch.set_num_threads(2)
examples = torch.ones(300_000, requires_grad=True)
examples.exp().sum().backward()  # threads of OpenMP

def compute():
    assert torch.get_num_threads() == 1
    torch.set_num_threads(2)
    total = (examples * 2).sum()
    total.backward()
    torch.set_num_threads(1)
    return {"total": total.item(), "drawn": torch.rand(1).item()}

print("once", end="")
with InProcessGrid(app, 4, workers=2, tracebacks=True) as grid:
    told = [reply.content["told"] for reply in ask(grid)]
    failed = [reply for reply in ask(grid, **{"raise": ConfigRecord()}) if reply.has_error()]
examples.exp().sum().backward()
assert torch.get_num_threads() == 2
assert [each["total"] for each in told] == [600_000.0] * 4, told
assert len({each["drawn"] for each in told}) == 4
assert len(failed) == 1
"""
    code, out, err = finish(start(code, folder=tmp_path))
    assert code == 0, err
    assert out.count("once") == 1
    assert sorted(out.removeprefix("once").split("\n")) == sorted(
        ["", *(f"client {client} has begun" for client in (0, 1, 2, 3) * 2)]
    )
    assert err.count("Client 1 raised an exception.") == 1
    assert 'raise OSError("no data there")' in err


HANGING = """
with InProcessGrid(app, 4, workers=2) as grid:
    ask(grid, hang=ConfigRecord())
"""


def hanging(folder: Path) -> tuple[subprocess.Popen[str], list[psutil.Process]]:
    """Return a script, and the processes below it, two of which play clients."""
    process = start(HANGING, folder=folder)
    assert process.stdout is not None
    begun = {process.stdout.readline() for _ in range(2)}
    if begun != {"client 0 has begun\n", "client 1 has begun\n"}:
        os.killpg(process.pid, signal.SIGKILL)
        raise AssertionError(begun, finish(process))
    below = psutil.Process(process.pid).children(recursive=True)
    assert len(below) == 3
    return process, below


def assert_end(processes: list[psutil.Process]) -> None:
    deadline = time.monotonic() + 20
    while any(is_alive(process) for process in processes):
        assert time.monotonic() < deadline, processes
        time.sleep(0.05)


def test_nothing_is_left_of_a_process_that_is_killed(tmp_path: Path) -> None:
    process, below = hanging(tmp_path)
    # Others may make files there at the same time, and are none of its own.
    used = [psutil.Process(process.pid), *below]
    paths = {Path(each.path) for of in used for each in [*of.memory_maps(), *of.open_files()]}
    process.kill()
    assert_end(below)
    finish(process)
    assert not [path for path in paths if Path("/dev/shm") in path.parents and path.exists()]
    assert not [path for path in Path("/dev/shm").iterdir() if str(process.pid) in path.name]


def test_nothing_is_left_after_an_interruption_from_the_keyboard(tmp_path: Path) -> None:
    process, below = hanging(tmp_path)
    os.killpg(process.pid, signal.SIGINT)
    code, _, err = finish(process)
    assert code == -signal.SIGINT
    assert err.count("KeyboardInterrupt") == 1
    assert_end(below)


def test_workers_end_with_the_process_that_starts_them(tmp_path: Path) -> None:
    process, below = hanging(tmp_path)
    (server,) = psutil.Process(process.pid).children()
    server.kill()
    code, _, err = finish(process)
    assert code == 1
    assert "DeadWorkerError: the process that starts the workers of the simulation has died" in err
    assert_end(below)


def test_a_notebook_goes_on_after_an_interruption(tmp_path: Path) -> None:
    code = """
import threading
grid = InProcessGrid(app, 4, workers=2)
threading.Timer(2, lambda: os.kill(main, signal.SIGINT)).start()
try:
    ask(grid, hang=ConfigRecord())
except KeyboardInterrupt:
    print("interrupted")
print(len(ask(grid)), "replies")
"""
    code, out, err = finish(start(code, folder=tmp_path))
    assert code == 0, err
    assert out.endswith("4 replies\n")
    assert "interrupted" in out


def test_many_clients_that_keep_arrays_need_no_limit_to_be_raised(tmp_path: Path) -> None:
    code = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
from flwr.app import Array, ArrayRecord
import numpy as np
keeping = ClientApp()

@keeping.train()
def train(message, context):
    context.state["w"] = ArrayRecord({"w": Array(np.full(5, context.node_config["partition-id"]))})
    return Message(RecordDict(), reply_to=message)

grid = InProcessGrid(keeping, 300, workers=2)
messages = [Message(RecordDict(), 1000 + n, "train") for n in range(300)]
assert not any(reply.has_error() for reply in grid.send_and_receive(messages))
kept = [int(context.state["w"]["w"].numpy()[0]) for context in grid.contexts.values()]
assert kept == list(range(300))
"""
    code, _, err = finish(start(code, folder=tmp_path))
    assert code == 0, err


def pncs(*arguments: str) -> Result:
    return CliRunner().invoke(
        cli.app, ["run", "--engine", "in-process", "--rounds", "3", *arguments]
    )


@pytest.mark.minutes
def test_the_command_has_the_same_bits_with_workers(tmp_path: Path) -> None:
    told = []
    for workers in ("1", "2"):
        folder = tmp_path / workers
        done = pncs("--workers", workers, "--output", str(folder))
        assert done.exit_code == 0, done.output
        facts = ("asked", "chosen", "delivered", "accuracy", "loss", "bytes_up")
        rows = [[row[fact] for fact in facts] for row in read_rounds(folder)]
        with np.load(folder / "weights.npz", allow_pickle=False) as weights:
            told.append((rows, {name: weights[name].tobytes() for name in weights.files}))
    assert told[0] == told[1]
    assert "in 2 worker processes" in done.output


def test_clients_write_to_the_log_of_the_command(tmp_path: Path) -> None:
    def fail(message: Message, context: Context) -> RecordDict:
        raise OSError("no data there")

    log = tmp_path / "flwr.log"
    with _flower_log(log), InProcessGrid(app_of(fail), 2, tracebacks=True, workers=2) as grid:
        ask(grid, 0, 1)
    text = log.read_text()
    assert [text.count(f"Client {client} raised an exception.") for client in (0, 1)] == [1, 1]
    assert text.count("OSError: no data there") == 2


def test_workers_of_the_command_are_not_for_ray() -> None:
    done = pncs("--engine", "ray", "--workers", "2")
    assert done.exit_code == 1
    assert "--workers is for --engine in-process: leave it out; on Ray, --cpus-per" in done.output


def test_what_a_client_keeps_is_read_only_if_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def keep(message: Message, context: Context) -> RecordDict:
        if "deliver" in message.content:
            return RecordDict({"kept": context.state.pop("kept")})
        if "forget" in message.content:
            del context.state["kept"]
        else:
            context.state["kept"] = ArrayRecord({"w": Array(np.full(1000, place(context)))})
        return RecordDict()

    def read(file: NamelessFile, where: tuple[int, int]) -> bytes:
        if where[1] > 8000 and os.getpid() != main:
            os._exit(9)
        return before(file, where)

    main, before = os.getpid(), NamelessFile.read
    monkeypatch.setattr(NamelessFile, "read", read)
    with InProcessGrid(app_of(keep), 3, workers=2) as grid:
        ask(grid, 0, 1, 2)
        ask(grid, 0, forget=ConfigRecord())
        kept = ask(grid, 1, 2, deliver=ConfigRecord())
        assert [each["kept"]["w"].numpy()[0] for each in kept.values()] == [1, 2]
        assert not any(context.state for context in grid.contexts.values())
