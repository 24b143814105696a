"""`pncs compare` is a sweep without a file: each run is that of `pncs run`, and it goes on."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from pncs_flower.simulations.cli import app
from pncs_flower.simulations.config import default_run_config, merged
from pncs_flower.simulations.sweep.comparison import comparison
from pncs_flower.simulations.sweep.results import read_results

RULES = ("pncs", "pncs rule.p=2", "all")
SMALL = ["--clients", "4", "--rounds", "2", "--seeds", "1", "--target", "0.99"]


def compare(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["compare", *arguments])


def measured(folder: Path) -> list[Any]:
    runs = read_results(folder).runs
    return [(r.cell["line"], r.scores.tolist(), [row["chosen"] for row in r.rounds]) for r in runs]


def test_it_shows_a_table_and_a_picture_and_runs_what_is_missing(tmp_path: Path) -> None:
    first, players = tmp_path / "first", tmp_path / "players"
    done = compare(*RULES, *SMALL, "--workers", "1", "--output", str(first))
    assert done.exit_code == 0, done.output
    # What takes seconds is told before: PyTorch's import, and the report's pictures.
    title = "pncs, pncs rule.p=2, all on digits"
    begun, _, shown = done.output.partition("\nDrawing the report ...\n")
    assert begun.startswith(f"{title}; results in {first}\n3 runs\n")
    assert "mean of both rounds" in shown
    assert "Gini" in shown
    assert "no run reaches 99%" in " ".join(done.output.split())
    for name in ("side-by-side.png", "report.html"):
        assert (first / name).is_file()
        assert f"{first / name}\n" in done.output
    # The bits do not depend on who plays the clients.
    again = compare(*RULES, *SMALL, "--workers", "2", "--output", str(players))
    assert again.exit_code == 0, again.output
    assert measured(players) == measured(first)
    more = compare("uniform", *RULES, *SMALL, "--output", str(first))
    assert "4 runs, of which 3 are there" in more.output
    assert "the report in" not in more.output
    shown = CliRunner().invoke(app, ["report", str(first)])
    assert "uniform" in shown.output
    assert "no run reaches 99%" in " ".join(shown.output.split())
    fewer = compare("uniform", *SMALL, "--output", str(first))
    assert f"the report in {first} was of uniform, pncs, pncs rule.p=2, all; the runs are kept" in (
        " ".join(fewer.output.split())
    )


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"num-selected": 3, "shards-per-client": 2, "lr": 0.05, "rule.sketch": "layers"},
        {"partition": "dirichlet", "dirichlet-alpha": 0.1, "model": "cnn"},
        {"partition": "iid", "model": "linear", "queue-length": 8, "dataset": "fashion-mnist"},
        {"partition": "natural", "dataset": "femnist"},
        {"model": "vgg16", "trainable-layers": "classifier.3,classifier.6"},
        {"model": "torchvision/resnet18", "trainable-layers": "fc"},
    ],
)
def test_its_runs_are_those_of_pncs_run(settings: dict[str, Any]) -> None:
    own: dict[str, Any] = {"strategy": "pncs", "lr": 0.2, "rule.form": "printed"}
    sweep = comparison({"pncs": {}, "other": own}, settings, clients=7, seeds=2, targets=[0.5, 0.6])
    found = {(cell.line, cell.seed): cell for cell in sweep.cells()}
    assert len(found) == 4
    for (line, seed), cell in found.items():
        of_line = own if line == "other" else {}
        wanted = merged(default_run_config(), settings, {"strategy": "pncs", "seed": seed}, of_line)
        assert (cell.settings, cell.clients) == (wanted, 7)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["pnsc"], "there is no rule 'pnsc': did you mean 'pncs'?"),
        (["everybody"], "uniform, all"),
        (["pncs lr=0.1", "uniform", "pncs  lr=0.1"], "pncs lr=0.1 is given twice: give each rule"),
        (["pncs p=2"], "did you mean rule.p?"),
        (["pncs form"], '"pncs form": form must be KEY=VALUE'),
        (["pncs", "rule.p=2"], 'put it in quotes with the rule that it is for, "pncs rule.p=2"'),
        (["pncs num-rounds=3"], "with --set num-rounds=3"),
        (["all lr=0.2"], "give them to all with --set"),
        (["pncs strategy=oort"], "pncs is the rule, so it has no other strategy"),
        (["pncs seed=1"], '"pncs seed=1": seed = 1 is no setting here: say with --seeds'),
        (["--set", "strategy=oort"], "name the rule itself"),
        (["--set", "checkpoint=true"], "pncs run has it"),
        (["pncs", "uniform rule.q=2"], "rule.q"),
        ([" "], "pncs rules lists them"),
        (["--num-selected", "11"], "num-selected = 11, but there are only 10 clients: select few"),
        (["--clients", "1", "--num-selected", "2"], "there is only 1 client: select fewer in a"),
        (
            ["--set", "clients=3"],
            "--set clients=3: clients is no setting, but an option: --clients",
        ),
        (["pncs lr=0.1 lr=0.2"], '"pncs lr=0.1 lr=0.2": a setting is given twice'),
        (["no.module:Rule"], "No module named 'no'. Install the module where the server runs"),
        (["--model", "torchvision/resnet19"], "no classifier 'resnet19': did you mean 'resnet1"),
        (["--clients", "7", "--set", "shards-per-client=5"], "Error: pncs, seed 0: 7 clients x 5"),
        (["--target", "0"], "targets"),
        (["--set", "seed=3"], "say with --seeds how many"),
        (["--set", "rule.pp=2"], "did you mean rule.p?"),
    ],
)
def test_what_is_wrong_is_told_with_what_to_do(
    arguments: list[str], told: str, tmp_path: Path
) -> None:
    done = compare(*arguments, "--output", str(tmp_path / "out"))
    assert done.exit_code == 1
    assert told in done.output
    before, error, _ = done.output.partition("Error: ")
    assert error
    # Where PyTorch is needed to know it, there stands what will be run.
    others = [line for line in before.splitlines() if not line.startswith("Note: ")]
    assert all(line.endswith(f"; results in {tmp_path / 'out'}") for line in others)
    for of_a_sweep in ("a sweep", "axis", " selected = ", "[rule", "layers 1"):
        assert of_a_sweep not in done.output
    assert not [*tmp_path.glob("out/cells/*")]


def test_the_rules_that_nobody_gave_are_named(tmp_path: Path) -> None:
    done = compare("--dataset", "cifar10", "--data-dir", "nowhere", "--output", str(tmp_path))
    assert done.output.startswith(
        "Note: no rule is given, so these are compared: pncs, sketched-mean, uniform (pncs rules "
        f"lists all)\npncs, sketched-mean, uniform on cifar10; results in {tmp_path}\n"
        "Error: CIFAR-10 is not in "
    )
    assert "pncs data get cifar10" in done.output


@pytest.mark.parametrize("clients", [1, 3, 7])
def test_any_number_of_clients_is_divided(clients: int, tmp_path: Path) -> None:
    many = ["--clients", str(clients), "--rounds", "1", "--seeds", "1", "--workers", "1"]
    done = compare("pncs", *many, "--output", str(tmp_path))
    assert done.exit_code == 0, done.output
    (run,) = read_results(tmp_path).runs
    assert (run.cell["settings"]["partition"], len(run.rounds[0]["clients"])) == (
        "dirichlet",
        clients,
    )


def test_runs_of_another_comparison_in_its_folder_are_told_and_stay(tmp_path: Path) -> None:
    (tmp_path / "cells").mkdir()
    (tmp_path / "cells" / "other.jsonl").write_text("of other settings")
    (tmp_path / "sweep.json").write_text('{"cells": ["other.jsonl", "missing.jsonl"]}\n')
    few = ["--clients", "1", "--rounds", "1", "--seeds", "1", "--workers", "1"]
    done = compare("uniform", *few, "--output", str(tmp_path))
    told = f"Note: {tmp_path} has 1 run that this command does not ask for: kept, and left out"
    assert told in done.output
    assert len([*tmp_path.glob("cells/*")]) == 2
    assert len(read_results(tmp_path).runs) == 1


def test_a_report_of_no_folder_says_what_to_type(tmp_path: Path) -> None:
    there, absent = tmp_path / "here" / "compare", tmp_path / "here" / "comapre"
    done = CliRunner().invoke(app, ["report", str(absent)])
    assert (done.exit_code, done.output) == (
        1,
        f"Error: there is no folder {absent}; pncs compare makes one\n",
    )
    there.mkdir(parents=True)
    (there / "sweep.json").touch()
    done = CliRunner().invoke(app, ["report", str(absent)])
    assert done.output.endswith(f"there is no folder {absent}; did you mean {there}?\n")
    # A run and a board may be reported on too, but neither has a sweep's tables, nor the latter a
    # round to be drawn.
    run, board = there.with_name("a-run"), there.with_name("comapre-2")
    for folder, mark in ((run, "summary.json"), (board, "board.json")):
        folder.mkdir()
        (folder / mark).touch()
    done = CliRunner().invoke(app, ["report", str(absent)])
    assert done.output.endswith(f"; did you mean {board}?\n")
    for told in (absent, board):
        done = CliRunner().invoke(app, ["report", str(told), "--round", "1"])
        assert done.output.endswith(f"; the latest is {run}\n")
    with pytest.raises(FileNotFoundError, match=f"; did you mean {there}\\?"):
        read_results(absent)


@pytest.mark.minutes
def test_it_is_killed_or_interrupted_leaves_nothing_running_and_goes_on(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from pncs_flower.simulations.cli import main; main()"]
    command += ["compare", "pncs", "--seeds", "4", "--rounds", "30", "--output", str(tmp_path)]
    finished: dict[Path, bytes] = {}
    for sent in (signal.SIGKILL, signal.SIGINT, signal.SIGTERM):
        begun = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        while len(found := [*tmp_path.glob("cells/*.jsonl")]) == len(finished):
            assert begun.poll() is None
            time.sleep(0.05)
        finished |= {path: path.read_bytes() for path in found}
        if sent == signal.SIGKILL:
            begun.kill()  # it alone: its workers notice
        else:
            os.killpg(begun.pid, sent)  # as a terminal does it, or timeout
        told, _ = begun.communicate(timeout=60)
        if sent != signal.SIGKILL:
            assert begun.returncode == 128 + sent
            assert told.endswith("\nStopped. The same command goes on from here.\n")
            there = {signal.SIGINT: "1 is", signal.SIGTERM: "2 are"}[sent]
            assert f"4 runs, of which {there} there" in told
            assert not (tmp_path / "failed").exists()
        # The system takes a moment to take note that the last of them has ended.
        with contextlib.suppress(ProcessLookupError):
            for _ in range(200):
                os.killpg(begun.pid, 0)
                time.sleep(0.05)
            raise AssertionError("processes are left after ten seconds")
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    assert "4 runs, of which 3 are there" in done.stdout
    assert len([*tmp_path.glob("cells/*")]) == 4
    assert {path: path.read_bytes() for path in finished} == finished
