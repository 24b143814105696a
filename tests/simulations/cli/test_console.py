"""An error is told in one sentence, and whose it is; where it comes from is never out of reach."""

import errno
import os
import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from pncs_flower.clients import training
from pncs_flower.files import write_whole
from pncs_flower.simulations.cli import app
from pncs_flower.simulations.cli import sweep as sweep_commands
from pncs_flower.simulations.cli.engines import _saying_how_to_go_on
from pncs_flower.simulations.config import Config, default_run_config
from pncs_flower.simulations.run import flower as flower_run
from pncs_flower.simulations.run.flower import RunFailedError
from pncs_flower.simulations.run.folder import read_rounds
from pncs_flower.simulations.run.settings import keep_settings
from pncs_flower.strategies import DeadWorkerError, EmptyRoundsError, SelectionError, record
from pncs_flower.strategies.record import append_line, write_json_lines

HINT = "give the same command with --traceback"
RUN = ["run", "--engine", "in-process", "--rounds", "2"]


def invoke(*arguments: str, **environment: str) -> Any:
    return CliRunner().invoke(app, arguments, env=environment)


def broken(*_: object) -> None:
    """Fail as a fault of this project's own code or of a library does."""
    np.zeros(2) + np.zeros(3)


def unpacked(*_: object) -> None:
    _first, _second = [1]


def unreadable(*_: object) -> None:
    Path("/no/such/folder/file").read_text()


@pytest.fixture(params=[broken, unpacked, unreadable])
def fault(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    monkeypatch.setattr(sweep_commands, "show_report", request.param)
    found: Callable[..., None] = request.param
    return found


@pytest.fixture
def folder(tmp_path: Path) -> str:
    (tmp_path / "sweep.json").touch()
    return str(tmp_path)


def test_error_that_is_not_ours_says_how_to_see_its_traceback(
    fault: Callable[..., None], folder: str
) -> None:
    done = invoke("report", folder)
    assert done.exit_code == 1
    assert HINT in done.output
    if fault is not unreadable:
        assert "Error: ValueError: " in done.output


@pytest.mark.parametrize("where", ["first", "last", "environment"])
def test_traceback_of_any_error_can_be_seen(
    where: str, fault: Callable[..., None], folder: str
) -> None:
    command = ["report", folder]
    if where == "environment":
        done = invoke(*command, PNCS_TRACEBACK="1")
    elif where == "first":
        done = invoke("--traceback", *command)
    else:
        done = invoke(*command, "--traceback")
    assert done.exit_code == 1
    assert isinstance(done.exception, ValueError | OSError)
    frames = done.exc_info[2]
    while frames.tb_next and frames.tb_frame.f_code is not fault.__code__:
        frames = frames.tb_next
    assert frames.tb_frame.f_code is fault.__code__


def test_one_command_with_traceback_does_not_have_it_for_the_next() -> None:
    invoke("--traceback", "report", "no such folder")
    assert isinstance(invoke("report", "no such folder").exception, SystemExit)


@pytest.mark.parametrize(
    "command",
    [
        ("report", "no such folder"),
        ("run", "--set", "lr=-1"),
        ("run", "--set", "nonsense"),
        ("reproduce", "table9"),
        ("sweep", "absent.toml"),
        ("data", "get", "mnist"),
    ],
)
def test_error_of_our_own_checks_is_one_sentence(command: tuple[str, ...]) -> None:
    done = invoke(*command)
    assert done.exit_code == 1
    assert done.output.startswith("Error: ")
    assert HINT not in done.output
    assert "ValueError" not in done.output


def test_sentence_made_of_somebody_elses_error_leads_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lame.py").write_text("import numpy as np\nnp.zeros(2) + np.zeros(3)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    command = [*RUN, "--set", "strategy=lame:Rule", "--output", str(tmp_path / "run")]
    assert HINT in invoke(*command).output
    error = invoke(*command, "--traceback").exception
    assert isinstance(error.__cause__, ValueError)


def test_context_that_a_sentence_leaves_out_is_shown_with_the_traceback(tmp_path: Path) -> None:
    file = tmp_path / "sweep.toml"
    file.write_text("title = ")
    error = invoke("sweep", str(file), "--traceback").exception
    assert type(error.__context__).__name__ == "TOMLDecodeError"
    assert not error.__suppress_context__


RULE = """
from dataclasses import dataclass
import numpy as np
from pncs_flower.strategies.rules.uniform import UniformRule

@dataclass(frozen=True)
class Rule(UniformRule):
    def select(self, *_, **__):
        return np.zeros(2) + np.zeros(3)
"""


def test_error_in_a_client_keeps_its_traceback_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "local_sgd", broken)
    done = invoke(*RUN, "--strategy", "uniform", "--output", str(tmp_path / "run"))
    assert done.exit_code == 1
    assert done.output.endswith(
        "All its rounds are over: mend that, and start again in another --output\n"
    )
    text = (tmp_path / "run" / "flwr.log").read_text(encoding="utf-8")
    assert "Client 0 raised an exception.\nTraceback (most recent call last)" in text
    assert "in broken\n" in text


def test_error_in_a_users_rule_keeps_its_traceback_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_rule.py").write_text(RULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    done = invoke(*RUN, "--strategy", "broken_rule:Rule", "--output", str(tmp_path / "run"))
    assert done.exit_code == 1
    log = tmp_path / "run" / "flwr.log"
    assert f"Flower's log, with the traceback: {log}" in done.output.replace("\n", "")
    assert "broken_rule.py" in log.read_text()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_error_of_a_write_names_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OSError, match="No space left on device: '/dev/full'"):
        append_line(Path("/dev/full"), b"a round\n")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"No space left on device: '.*config\.toml'"):
        write_whole(tmp_path / "config.toml", "")


def test_full_disk_is_told_with_the_file_and_the_command_that_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, rows: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    output = tmp_path / "a run"
    with monkeypatch.context() as patch:
        patch.setattr(record, "write_json_lines", full)
        done = invoke(*RUN, "--clients", "6", "--output", str(output))
    assert done.exit_code == 1
    assert f"{output / 'rounds.jsonl'}': make room" in done.output
    assert "the same command again" not in done.output
    line = next(t for t in done.output.splitlines() if t.startswith("To go on with it: pncs "))
    command = shlex.split(line.removeprefix("To go on with it: pncs "))
    again = invoke(*command)
    assert again.exit_code == 0, again.output
    assert "[1/2]" not in again.output


# --- what goes on, and what does not --------------------------------------------------------------


def test_pair_that_cannot_work_is_refused_before_the_start(tmp_path: Path) -> None:
    output = tmp_path / "run"
    done = invoke(
        *RUN, "--set", "rule.per_layer=true", "--set", "combine=fedvarp", "--output", str(output)
    )
    assert done.exit_code == 1
    assert "Error: combine is 'fedvarp', but the rule chooses for each layer" in done.output
    assert "clients" not in done.output.partition("Error")[0]
    assert not output.exists()


GO_ON = "To go on with it: pncs run --resume"
PERHAPS = "If something else than its settings was to blame, and is mended:"


@pytest.mark.parametrize(
    ("error", "hints"),
    [
        (ValueError("no such pair"), []),
        (SelectionError("no such metric"), []),
        (EmptyRoundsError("nobody delivered"), [PERHAPS, GO_ON]),
        (DeadWorkerError("a worker has died"), [GO_ON]),
        (MemoryError("no room"), [GO_ON]),
        # As Flower tells it of a run on Ray.
        (RunFailedError("Flower reports finished:failed: no such metric"), []),
        (RunFailedError("Flower reports finished:failed: "), [GO_ON]),
    ],
)
def test_command_that_goes_on_is_told_where_that_can_help(
    error: Exception, hints: list[str], tmp_path: Path
) -> None:
    config = Config.from_run_config(default_run_config())
    (tmp_path / "config.toml").touch()
    row = {
        "round": 1,
        "accuracy": None,
        "elapsed": 0.0,
        "notes": ["the run ended here: SelectionError: no such metric"],
    }
    write_json_lines(tmp_path / "rounds.jsonl", [row])
    place = {"engine": "ray"}
    with pytest.raises(type(error)) as found, _saying_how_to_go_on(config, tmp_path, place):
        raise error
    told = getattr(found.value, "__notes__", [])
    assert [note.partition(" /")[0] for note in told] == hints


def test_a_run_whose_rounds_are_all_done_is_not_said_to_go_on(tmp_path: Path) -> None:
    config = Config.from_run_config(default_run_config())
    (tmp_path / "summary.json").write_text(f'{{"rounds": {config.num_rounds}}}')
    with (
        pytest.raises(MemoryError) as found,
        _saying_how_to_go_on(config, tmp_path, {"engine": "in-process"}),
    ):
        raise MemoryError
    assert found.value.__notes__[-1] == f"All its rounds are done: pncs report {tmp_path}"


@pytest.mark.parametrize("missing", ["flwr", "flower-superlink"])
def test_it_is_told_where_a_program_of_flowers_is_missing(
    missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name, **_: None if name == missing else name)
    done = invoke("run", "--output", str(tmp_path / "run"))
    assert done.exit_code == 1
    folder = Path(sys.executable).parent
    assert done.output.startswith(
        f"Error: Flower's program {missing} is neither in {folder} nor on the PATH. Install it "
    )
    assert "-m pip install --force-reinstall --no-deps flwr==" in done.output
    assert done.output.endswith("Or give --engine in-process, which does without it\n")
    monkeypatch.setattr(flower_run, "find_spec", lambda name: None)
    assert invoke("run").output.startswith("Error: Ray is not installed: install it with ")
    assert not (tmp_path / "run").exists()


def test_run_that_was_not_saved_and_one_that_has_lost_it_are_refused_in_one_sentence(
    tmp_path: Path,
) -> None:
    unsaved, lost = tmp_path / "unsaved", tmp_path / "lost"
    for output, checkpoint in ((unsaved, "false"), (lost, "true")):
        done = invoke(*RUN, "--set", f"checkpoint={checkpoint}", "--output", str(output))
        assert done.exit_code == 0
    for file in (lost / "checkpoint").glob("*.checkpoint"):
        file.unlink()
    again = {
        folder: invoke(*RUN, "--rounds", "3", "--resume", str(folder)) for folder in (unsaved, lost)
    }
    assert all(each.exit_code == 1 for each in again.values())
    assert again[unsaved].output.startswith("Error: the run in ")
    assert "was not saved, as its setting checkpoint is false" in again[unsaved].output
    assert again[lost].output.startswith("Error: ")
    assert "put these files back" in again[lost].output
    assert len(read_rounds(lost)) == 2
    shutil.rmtree(lost / "checkpoint")
    anew = invoke(*RUN, "--rounds", "3", "--resume", str(lost))
    assert anew.exit_code == 0
    assert (
        "has no checkpoint: it starts again from round 1, and writes 2 rounds anew" in anew.output
    )
    assert [row["round"] for row in read_rounds(lost)] == [1, 2, 3]


@pytest.mark.parametrize(
    ("saved", "given", "told"),
    [
        (True, False, "leave checkpoint out"),
        (False, False, "start it anew in another folder"),
        (False, True, "start it anew in another folder"),
    ],
)
def test_what_is_given_of_the_checkpoint_is_told_in_one_sentence(
    saved: bool, given: bool, told: str, tmp_path: Path
) -> None:
    settings = {**default_run_config(), "checkpoint": saved}
    keep_settings(tmp_path, Config.from_run_config(settings), 4)
    done = invoke(*RUN, "--set", f"checkpoint={str(given).lower()}", "--resume", str(tmp_path))
    assert done.exit_code == 1
    assert done.output.startswith("Error: ")
    assert told in done.output
    assert "started with" not in done.output
