"""What is wrong with a sweep is told before anything runs, and odd names harm nothing."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from html import escape
from pathlib import Path
from types import SimpleNamespace

import pytest
from cells import change
from typer.testing import CliRunner

from pncs_flower.files import held
from pncs_flower.simulations.cli import app
from pncs_flower.simulations.config import Scalar
from pncs_flower.simulations.sweep import run as sweep_run
from pncs_flower.simulations.sweep.cell import Cell
from pncs_flower.simulations.sweep.pool import Moved
from pncs_flower.simulations.sweep.run import run_sweep
from pncs_flower.simulations.sweep.sweep import Sweep

SWEEP = Sweep(
    "a sweep", ("uniform",), clients=5, seeds=1, settings={"num-rounds": 1, "device": "cpu"}
)


@pytest.fixture
def never(monkeypatch: pytest.MonkeyPatch) -> None:
    def run_cell(cell: Cell, moved: Moved, scratch: str, **how: object) -> None:
        pytest.fail(f"{cell} was run")

    monkeypatch.setattr(sweep_run, "_run_cell", run_cell)


def run(sweep: Sweep, folder: Path) -> dict[str, str]:
    return run_sweep(sweep, folder, 0, lambda *_: None)


@pytest.mark.usefixtures("never")
@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"strategy": "nosuch:Rule"}, "strategy = 'nosuch:Rule': No module named 'nosuch'"),
        ({"strategy": "pncs", "rule.sketch": "foo"}, "foo"),
        (
            {"strategy": "pncs", "rule": "sketch = 'count:16'"},
            "keeps p=2 only, but p is",
        ),
        ({"strategy": "pncs", "rule.candidates": 1}, "candidates is 1, but 2 of them are"),
        ({"strategy": "pncs", "rule.layers": "nope"}, "nope"),
        ({"strategy": "pncs", "device": "cuda"}, "PyTorch sees no GPU"),
    ],
)
def test_a_rule_that_cannot_work_is_named_before_anything_runs(
    own: Mapping[str, Scalar], message: str, tmp_path: Path
) -> None:
    if own.get("device") == "cuda":
        torch = pytest.importorskip("torch")
        if torch.cuda.is_available():
            pytest.skip("there is a GPU")
    rules = replace(SWEEP, rules=("uniform", "mine"), rule={"mine": own})
    for sweep in (rules, replace(rules, tune={"lr": [0.1, 0.2], "seeds": 1})):
        with pytest.raises(ValueError, match=f"mine, seed 1?0*: .*{re.escape(message)}"):
            run(sweep, tmp_path)


@pytest.mark.usefixtures("never")
def test_a_dirichlet_partition_that_leaves_somebody_out_is_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "sweep.json").write_text("of the results that are there")
    sweep = replace(SWEEP, clients=500, shards=(), dirichlet=(0.1,))
    with pytest.raises(ValueError, match="cannot be divided among 500 clients"):
        run(sweep, tmp_path)
    assert (tmp_path / "sweep.json").read_text() == "of the results that are there"


def test_so_it_is_of_a_single_run(tmp_path: Path) -> None:
    command = (
        "run --engine in-process --clients 500 --set partition=dirichlet --set dirichlet-alpha=0.1"
    )
    done = CliRunner().invoke(app, [*command.split(), "--output", str(tmp_path / "run")])
    assert done.exit_code == 1
    assert "cannot be divided among 500 clients" in done.output
    assert not (tmp_path / "run").exists()


def test_a_file_of_other_settings_is_named(tmp_path: Path) -> None:
    run(SWEEP, tmp_path)
    (file,) = (tmp_path / "cells").iterdir()
    change(file, '"lr": 0.1', '"lr": 99.0')
    with pytest.raises(ValueError, match=f"{file.name} is damaged: .*: it was run with lr = 99.0"):
        run(SWEEP, tmp_path)


def test_a_folder_has_one_sweep_at_a_time(tmp_path: Path) -> None:
    with held(tmp_path), pytest.raises(ValueError, match="another process still writes"):
        run(SWEEP, tmp_path)
    assert run(SWEEP, tmp_path) == {}


@pytest.mark.usefixtures("never")
def test_a_sweep_that_is_refused_leaves_nothing_behind(tmp_path: Path) -> None:
    for wrong in (
        replace(SWEEP, clients=500, shards=(), dirichlet=(0.1,)),
        replace(SWEEP, clients=3, tune={"lr": [0.1, 0.2], "seeds": 1}),
    ):
        with pytest.raises(ValueError, match="cannot be"):
            run(wrong, tmp_path / "out")
        assert not [*tmp_path.iterdir()]
    with pytest.raises(ValueError, match=r"/proc/out is no folder .* to: No such .* --output"):
        run(SWEEP, Path("/proc/out"))


def test_a_sweep_does_not_write_over_a_run_a_board_or_a_file(tmp_path: Path) -> None:
    (tmp_path / "board.json").touch()
    with pytest.raises(ValueError, match="holds a board already"):
        run(SWEEP, tmp_path)
    (tmp_path / "rounds.jsonl").touch()
    with pytest.raises(ValueError, match="holds a single run already"):
        run(SWEEP, tmp_path)
    with pytest.raises(ValueError, match="is a file, and results need a folder"):
        run(SWEEP, tmp_path / "rounds.jsonl")


def test_a_sweep_of_all_clients_has_a_report(tmp_path: Path) -> None:
    page = report_of('rules = ["all"]', tmp_path)
    assert "Who was chosen when" not in page
    assert "Accuracy over rounds" in page


@pytest.mark.minutes
def test_odd_labels_are_shown_as_they_are(tmp_path: Path) -> None:
    names = ["$\\frac{$", "[/b]", "_hidden", "<i>&amp;"]
    rules = ", ".join(f"'{name}'" for name in names)
    own = "\n".join(f"[rule.'{name}']\nstrategy = 'uniform'" for name in names)
    page = report_of(f"rules = [{rules}, 'all']\n{own}", tmp_path)
    for name in names:
        assert f'<th scope="row">{escape(name)}</th>' in page


@pytest.mark.minutes
def test_a_reference_without_a_result_spoils_no_report(tmp_path: Path) -> None:
    report_of('rules = ["uniform", "round-robin"]', tmp_path)
    (lost,) = (tmp_path / "out" / "cells").glob("*-uniform-*")
    lost.unlink()
    done = CliRunner().invoke(app, ["report", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    assert "Runs without a result: 1" in done.output


def test_a_loss_beyond_all_numbers_is_no_damage(tmp_path: Path) -> None:
    run(SWEEP, tmp_path)
    (file,) = (tmp_path / "cells").iterdir()
    change(file, r'"loss": [^,}]+', '"loss": null')
    assert run(SWEEP, tmp_path) == {}


def report_of(text: str, folder: Path) -> str:
    file = folder / "odd.toml"
    file.write_text(
        f"title = 'a [/b] [red] title'\nclients = 4\nshards = [5]\nseeds = 1\n{text}\n"
        "[settings]\nnum-rounds = 1\n"
    )
    command = ["sweep", "--workers", "0", "--output", str(folder / "out"), str(file)]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert done.output.startswith("a [/b] [red] title; results in ")
    return (folder / "out" / "report.html").read_text()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, {}),
        ("title", None),
        ("cells", "abc"),
        ("cells", ["../other/cells/a.jsonl"]),
        ("report", {"rounds": "x"}),
        ("report", {"claims": [{"kind": "zz"}]}),
    ],
)
def test_a_damaged_description_of_a_sweep_is_named(key: str, value: object, tmp_path: Path) -> None:
    run(SWEEP, tmp_path)
    file = tmp_path / "sweep.json"
    about = {**json.loads(file.read_text()), key: value} if key else value
    file.write_text(json.dumps(about) + "\n")
    done = CliRunner().invoke(app, ["report", str(tmp_path)])
    assert done.exit_code == 1
    assert "sweep.json is damaged: give the command again" in done.output


def test_a_cluster_that_does_not_answer_is_told_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(ValueError, match=f"RAY_ADDRESS = {address} does not answer"):
        run_sweep(SWEEP, tmp_path, 1, lambda *_: None)


def test_what_ray_cannot_join_is_told_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def init(**options: object) -> None:
        raise ConnectionError("Could not find any\nrunning Ray instance.")

    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(init=init))
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    file = tmp_path / "sweep.toml"
    file.write_text('title = "a"\nrules = ["uniform"]\nseeds = 1\n')
    done = CliRunner().invoke(app, ["sweep", str(file), "--output", str(tmp_path / "out")])
    assert done.exit_code == 1
    told = "RAY_ADDRESS = auto is no cluster that can be joined (Could not find any running Ray"
    assert told in done.output
    assert "unset RAY_ADDRESS" in done.output
    assert "--traceback" not in done.output


def test_a_sweep_that_is_stopped_says_so(tmp_path: Path) -> None:
    file = tmp_path / "long.toml"
    file.write_text('title = "long"\nrules = ["uniform"]\nseeds = 2000\n')
    code = "from pncs_flower.simulations.cli import main; main()"
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    command = ["sweep", str(file), "--workers", "1", "--output", str(tmp_path / "out")]
    process = subprocess.Popen(
        [sys.executable, "-c", code, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "TMPDIR": str(scratch)},
    )
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob("out/cells/*.jsonl")):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 128 + signal.SIGTERM
    assert not list(scratch.glob("pncs-*"))
    # On a busy machine the first run may take so long that a line is written meanwhile.
    output = re.sub(r"^\d+ s: .*\n", "", output, flags=re.MULTILINE)
    assert output.splitlines() == [
        f"long; results in {tmp_path / 'out'}",
        "2000 runs",
        "Stopped. The same command goes on from here.",
    ]
