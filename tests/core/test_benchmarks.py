"""The speed benchmarks run and print their tables, at sizes that take no time."""

import csv
import json
import logging
import os
import runpy
import subprocess
import sys
import tempfile
import venv
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from pncs_flower.simulations.sweep.cell import CELLS, Run, write_cell

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.append(str(BENCHMARKS))

import combinations  # noqa: E402


def run(script: str, *arguments: str) -> list[str]:
    """Run a benchmark as a user does and return the lines that it prints."""
    command = [sys.executable, str(BENCHMARKS / script), *arguments]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout.splitlines()


@pytest.fixture
def run_here(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., list[str]]]:
    """Run a benchmark in this process, which has PyTorch already, and leave it as it was."""
    logger = logging.getLogger("flwr")
    level, threads = logger.level, torch.get_num_threads()

    def run_script(script: str, *arguments: str) -> list[str]:
        monkeypatch.setattr(sys, "argv", [script, *arguments])
        monkeypatch.setattr(sys, "path", [*sys.path])  # to which a script adds
        runpy.run_path(str(BENCHMARKS / script), run_name="__main__")
        return capsys.readouterr().out.splitlines()

    yield run_script
    logger.setLevel(level)
    torch.set_num_threads(threads)


@pytest.mark.minutes
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_similarity(library: str, run_here: Callable[..., list[str]]) -> None:
    """With torch it is the path of `--device cuda`, on the CPU."""
    lines = run_here("similarity.py", "--rows", "5", "--values", "300", "--library", library)
    assert lines[-1].split()[:2] == ["5", "300"]


def test_sketch(run_here: Callable[..., list[str]]) -> None:
    lines = run_here("sketch.py", "--width", "64", "--examples", "8", "--sketches", "count:16@int8")
    assert lines[-1].split()[:2] == ["count:16@int8", "20"]


def test_subset() -> None:
    lines = run("subset.py", "--largest", "26")
    assert [line.split()[1:3] for line in lines[2:]] == [["24", "12"], ["26", "9"]]
    assert all(line.endswith("proved") for line in lines[2:])


def test_fit() -> None:
    lines = run("fit.py", "--largest", "10")
    assert [line.split()[:5] for line in lines[2:]] == [
        ["10", "20", "2", "256", "inf"],
        ["10", "20", "2", "256", "0.1"],
    ]


def test_combination_cost() -> None:
    sizes = ["--clients", "20", "--selected", "3", "--stored", "5", "--values", "1000"]
    rows = [line.split() for line in run("combination_cost.py", *sizes)[2:]]
    steps = [row[2] for row in rows]
    assert len(steps) == 4 * len(set(steps))
    assert {"choosing", "verifying", "combining", "FedAvg", "mean", "storing"} < set(steps)
    assert all(float(row[3]) > 0 for row in rows)


@pytest.mark.minutes
def test_gpu() -> None:
    """The whole script, on the CPU."""
    pytest.importorskip("torchvision", reason="needs pncs-flower[simulation]")
    options = ("--layers", "classifier.6", "--rounds", "2", "--examples", "8", "--workers", "1,2")
    lines = run("gpu.py", "--device", "cpu", *options)
    names = ["cpu, float32", "cpu, float32, 2 workers", "cpu, float32", "cpu, bfloat16"]
    assert [line[:26].rstrip() for line in lines[2:]] == names
    assert all("2 of 2 rounds as on the CPU" in line for line in lines[2:5])


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_gpu_says_why_it_is_skipped(run_here: Callable[..., list[str]]) -> None:
    pytest.importorskip("torchvision", reason="needs pncs-flower[simulation]")
    with pytest.raises(SystemExit, match=r"Skipped: PyTorch .* it (sees none|was built without)"):
        run_here("gpu.py")


@pytest.mark.minutes
def test_combinations(tmp_path: Path) -> None:
    """A second start computes nothing anew, and one with faults is another run."""
    output = tmp_path / "results.jsonl"
    options = ["--quick", "--workers", "1", "--tune", ".03,.3", "--output", str(output)]
    options += ["--lines", "all,uniform,sketched-mean,uniform/fedprox-.1"]
    options += ["--line", 'name = "mine", strategy = "PNCS", combine = "mifa", queue_length = 4']
    options += ["--line", 'name = "again", strategy = "UniformSelection"']
    lines = run("combinations.py", *options)
    rows = {line.split("|")[1].strip(): line.split("|")[2:] for line in lines[5:]}
    assert rows["again"][3:] == rows["uniform"][3:]  # the same runs under another name
    assert rows.keys() == {
        "all",
        "uniform",
        "sketched-mean",
        "uniform/fedprox-.1",
        "mine",
        "again",
    }
    assert f"code {combinations.CODE} (24 runs)" in lines[1]
    assert "p of 2 pairs is at least 0.5, in Holm's column 1" in lines[1]
    assert "at an edge of the rates tried: all, uniform, " in lines[1]
    done = output.read_text("utf-8")
    assert len(done.splitlines()) == 5 * (2 + 2)
    output.write_text(done + done[:50], "utf-8")  # a line that was being written
    assert run("combinations.py", *options)[3:] == lines[3:]
    assert output.read_text("utf-8") == done
    few = ["--quick", "--workers", "1", "--tune", ".3", "--output", str(output)]
    few += ["--lines", "all,uniform,sketched-mean"]
    faults = ["--lose", "0.2", "--churn", "0.2", "--hostile", "0.1", "--attack", "false-sketch"]
    run("combinations.py", *few, *faults)
    assert len(output.read_text("utf-8").splitlines()) == 5 * (2 + 2) + 3 * 2


@pytest.mark.minutes
def test_peers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be installed is skipped; the others end with the plain loop's model."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    venv.create(tmp_path / "blazefl", symlinks=True)  # most of the time goes into its pip
    peers = ["blazefl", "ours-workers", "flower-in-process"]
    rows = peer_rows("--works", "mlp-100", "--peers", *peers, "--environments", str(tmp_path))
    assert list(rows) == ["plain", *peers]
    assert rows.pop("blazefl")[:3] == ["skipped:", "not", "installed:"]
    assert_figures(rows)


@pytest.mark.minutes
def test_peers_of_other_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    if not (BENCHMARKS.parent / "build" / "peers").is_dir():
        pytest.skip("their environments are made by: python benchmarks/peers.py --quick")
    monkeypatch.setenv("PIP_NO_INDEX", "1")  # tests need no network: they are there, or skipped
    libraries = ("blazefl-threads", "blazefl-processes", "pfl-processes")
    rows = peer_rows("--works", "mlp-100", "--peers", *libraries)
    assert set(rows) == {"plain", *libraries}
    assert_figures({name: row for name, row in rows.items() if row[0] != "skipped:"})


@pytest.mark.ray
@pytest.mark.minutes
def test_peers_on_ray() -> None:
    rows = peer_rows("--works", "linear-10", "--peers", "flower-ray", "ours-ray")
    assert list(rows) == ["plain", "flower-ray", "ours-ray"]
    assert_figures(rows)


def peer_rows(*arguments: str) -> dict[str, list[str]]:
    """Run peers.py, which is to leave no file, and return what its rows say of each peer."""
    with tempfile.TemporaryDirectory(prefix="peers-", dir="/tmp") as folder:
        environment = {**os.environ, "RAY_TMPDIR": folder, "TMPDIR": folder}
        command = [sys.executable, str(BENCHMARKS / "peers.py"), "--quick", *arguments]
        finished = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=280, check=False
        )
        assert finished.returncode == 0, finished.stdout + finished.stderr
        assert os.listdir(folder) == []
    lines = finished.stdout.splitlines()
    table = [line.split() for line in lines if line.startswith(arguments[1])]
    return {row[1]: row[2:] for row in table}


def assert_figures(rows: dict[str, list[str]]) -> None:
    """A peer takes some time, and is at most rounding off the plain loop's model."""
    for _, milliseconds, *_, off in rows.values():
        assert float(milliseconds) > 0
        assert float(off) <= 1e-3


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ("combine=mifa", "use --line"),
        ("rule.candidates=3", "use --line"),
        ("num-rounds=3", "use --rounds"),
        ("lr=0.5", "use --lr"),
        ("data-dir=data", "not read by digits"),
        ("momentum=0.9", "momentum is 0.9"),
        ("precision=bfloat16", "another model"),
    ],
)
def test_what_combinations_does_not_read(
    setting: str, reason: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["combinations.py", "--quick", "--set", setting])
    with pytest.raises(SystemExit):
        combinations.read_options()
    assert reason in capsys.readouterr().err


@pytest.mark.parametrize(
    ("model", "sketch"), [("mlp", "count:128"), ("linear", "count:256"), ("cnn", "count:64")]
)
def test_sketches_of_all_layers(model: str, sketch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """GradientMemory's have as many numbers in all as the sketched mean's."""
    arguments = ["combinations.py", "--model", model, "--lines", "gradient-memory"]
    monkeypatch.setattr(sys, "argv", arguments)
    assert combinations.read_options().known["gradient-memory"]["sketch"] == sketch


def test_aggregation() -> None:
    """Clients that count the same give another model than those that count by their examples."""
    line = {"strategy": "UniformSelection", "base": "FedAvg", "num_selected": 6}
    settings = {"dataset": "digits", "model": "linear", "partition": "dirichlet", "lr": 0.3}
    cell = {"name": "all", "line": line, "clients": 6, "rounds": 2, "faults": {}}
    logger = logging.getLogger("flwr")
    level = logger.level
    try:
        found = [
            combinations.run_cell(cell | {"settings": settings | {"aggregation": aggregation}})
            for aggregation in ("examples", "uniform")
        ]
    finally:
        logger.setLevel(level)
    assert found[0]["accuracies"] != found[1]["accuracies"]


def test_way() -> None:
    """Whatever the seeds, all of them half the way; and an interval that has some width."""
    low, high = np.array([0.2, 0.3, 0.5]), np.array([0.4, 0.5, 0.9])
    values = {
        "low": low,
        "high": high,
        "half": (low + high) / 2,
        "other": low + np.array([0, 0.1, 0.1]),
    }
    ways = [
        combinations._way(values, name, "low,high", with_interval=True)
        for name in ("low", "half", "other")
    ]
    # By hand: mean 0.2 / 0.8; residuals -0.05, 0.05, 0; t of 0.975 with 2 degrees is 4.303.
    assert ways == ["", " (50% ± 0%)", " (25% ± 47%)"]


@pytest.mark.minutes
def test_curves(tmp_path: Path) -> None:
    """Runs of two rates are not one line; a line that is being written is left out."""
    common = {"line": {}, "faults": {}, "clients": 2, "rounds": 2, "accuracies": [0.1, 0.2]}
    rows = [
        common | {"name": name, "settings": {"seed": seed, "lr": lr, "evaluate-on": "test"}}
        for name, lr in (("all", 0.1), ("uniform", 0.1), ("uniform", 0.3))
        for seed in range(2)
    ]
    text = "".join(f"{json.dumps(row)}\n" for row in rows)
    (tmp_path / "rows.jsonl").write_text(f"{text}{text[:40]}", "utf-8")
    command = [sys.executable, str(BENCHMARKS / "curves.py"), str(tmp_path / "rows.jsonl")]
    command += ["--lines", "all,uniform", "--titles", "one", "--picture"]
    command += [str(tmp_path / "curves.png")]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert "uniform that differ in lr (0.1, 0.3): choose" in refused.stderr
    command[2] = str(tmp_path / "absent.jsonl")
    refused = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert refused.stderr == f"{command[2]} cannot be read: No such file or directory\n"
    command[2] = str(tmp_path / "rows.jsonl")
    subprocess.run([*command, "--set", "uniform:lr=0.3"], timeout=120, check=True)
    assert (tmp_path / "curves.png").exists()


SCRIPTS = [
    "similarity.py",
    "sketch.py",
    "subset.py",
    "fit.py",
    "gpu.py",
    "combination_cost.py",
    "combinations.py",
    "growth.py",
    "peers.py",
    "sweep_pictures.py",
    "sweep_tables.py",
    "sweep_raw.py",
]


def test_pictures_of_a_sweep(
    tmp_path: Path, run_here: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    """Of each kind one; a line that the sweep lacks is an error, and so is no name of a picture."""
    rounds, reached = ["panel,rule,seed,round,accuracy,bytes,bytes received"], []
    for seed in (0, 1):
        for rule in ("all", "pncs"):
            rounds += [f'"a, none",{rule},{seed},{r},0.{r}{seed},{r}00,{r}00' for r in (1, 2)]
    reached = ["panel,rule,seed,target,rounds,simulated seconds,bytes both ways"]
    for plot in ("phones", "cross-silo", "none"):
        reached += [f'"devices {plot}",{rule},0,0.7,2,60,2000000' for rule in ("all", "pncs")]
        reached.append(f'"devices {plot}",pncs,1,0.7,,,')
    (tmp_path / "rounds.csv").write_text("\n".join(rounds))
    (tmp_path / "reached.csv").write_text("\n".join(reached))
    script, picture = "sweep_pictures.py", tmp_path / "a.png"
    lines = [script, "lines", str(tmp_path), "--picture", str(picture), "--rules"]
    run_here(*lines, "all", "pncs")
    assert picture.stat().st_size > 10_000
    picture.unlink()
    run_here(script, "reached", str(tmp_path), "--target", "0.70", "--picture", str(picture))
    assert picture.stat().st_size > 10_000
    with pytest.raises(SystemExit, match="has no runs of oort"):
        run_here(*lines, "oort")
    for name, told in (("absent/a.png", "no folder absent"), ("a.xyz", "a name that ends in .png")):
        with pytest.raises(SystemExit):
            run_here(*lines[:4], name, "--rules", "all")
        assert told in capsys.readouterr().err
    with pytest.raises(SystemExit, match=r"has no target 0\.8"):
        run_here(script, "reached", str(tmp_path), "--target", "0.8", "--picture", str(picture))
    with pytest.raises(SystemExit, match=r"has no reached\.csv"):
        run_here(script, "reached", "absent", "--target", "0.7", "--picture", str(picture))
    with (tmp_path / "rounds.csv").open("a") as file:
        file.write("\nb,all,0,1,0.5,100,100")
    with pytest.raises(SystemExit, match="several plots: give one by --plot: a, none; b"):
        run_here(*lines, "all")


def test_tables_of_a_sweep(tmp_path: Path, run_here: Callable[..., list[str]]) -> None:
    """The best of those that compete in bold, p and the chosen rate of each plot beside it."""
    ends = {"a": {"all": 0.9, "pncs": 0.7, "uniform": 0.6}, "b": {"all": 0.9, "pncs": 0.5}}
    cells, tuned = [], []
    (tmp_path / CELLS).mkdir()
    for panel, lines in ends.items():
        for line, end in lines.items():
            rates = {"accuracies": {"0.1": 0.5, "0.3": end}, "lr": 0.3}
            tuned.append({"panel": f"shards {panel}", "line": line} | rates)
            for seed in (0, 1):
                cell = {"panel": f"shards {panel}", "line": line, "rule": line, "seed": seed}
                cell |= {"clients": 2, "settings": {"num-rounds": 5, "lr": 0.3}}
                row = {"accuracy": end + seed / 100}
                row |= {"bytes_up": {"training": 2_000}, "bytes_down": {"training": 3_000}}
                rounds = [{"round": number} | row for number in range(1, 6)]
                cells.append(f"shards{panel}-{line}-{seed}-0.jsonl")
                write_cell(tmp_path / CELLS / cells[-1], Run(cell, rounds, {}))
    report = {"reference": "pncs", "rounds": [3], "targets": []}
    about = {"title": "", "report": report, "cells": cells, "tuned": tuned}
    (tmp_path / "sweep.json").write_text(json.dumps(about))
    ended, after = "\n".join(run_here("sweep_tables.py", str(tmp_path))).split("\n\n")
    assert ended.splitlines()[0] == "| rule | shards a | shards b | rates |"
    assert ended.splitlines()[2:] == [
        "| all | 0.905 ± 0.064 (1.000) | 0.905 ± 0.064 (0.500) | 0.3, 0.3 |",
        "| pncs | **0.705 ± 0.064** | **0.505 ± 0.064** | 0.3, 0.3 |",
        "| uniform | 0.605 ± 0.064 (1.000) | - | 0.3 |",
    ]
    assert after.splitlines()[2:] == [
        "| all | 0.905 | 2 |",
        "| pncs | **0.605** | 2 |",
        "| uniform | - | 2 |",
    ]
    ended = run_here("sweep_tables.py", str(tmp_path), "--reference", "uniform")
    assert ended[3] == "| pncs | **0.705 ± 0.064** (1.000) | **0.505 ± 0.064** | 0.3, 0.3 |"
    with pytest.raises(SystemExit, match="no runs of oort; it has all, pncs, uniform"):
        run_here("sweep_tables.py", str(tmp_path), "--reference", "oort")
    with pytest.raises(SystemExit, match="absent"):
        run_here("sweep_tables.py", "absent")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "summary.json").touch()
    with pytest.raises(SystemExit, match="json: give the folder of a sweep or of a board"):
        run_here("sweep_raw.py", str(tmp_path / "run"), "all.csv")
    raw = tmp_path / "raw" / "all.csv"
    run_here("sweep_raw.py", str(tmp_path), str(raw))
    with pytest.raises(SystemExit, match="cannot be written: Is a directory"):
        run_here("sweep_raw.py", str(tmp_path), str(raw.parent))
    with raw.open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == len(cells)
    own = {"sweep": tmp_path.name, "plot": "shards b", "rule": "pncs", "seed": "1", "lr": "0.3"}
    own |= {"bytes sent": "10000", "bytes received": "15000", "simulated seconds": ""}
    assert [line for line in lines if own.items() <= line.items()] == [
        own | {f"round {number}": "0.51" for number in range(1, 6)}
    ]


@pytest.mark.parametrize("script", SCRIPTS)
def test_help_gives_examples(
    script: str, run_here: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        run_here(script, "--help")
    assert not ended.value.code
    assert f"\npython benchmarks/{script}" in capsys.readouterr().out


def test_engine(run_here: Callable[..., list[str]]) -> None:
    """The script itself fails if engine and plain loop end with other weights."""
    lines = run_here("engine.py", "--clients", "3", "--rounds", "2")
    assert lines[2].split()[0] == "3"


@pytest.mark.minutes
def test_growth() -> None:
    sizes = ["--clients", "20", "30", "--rounds", "10", "--asked", "4", "--chosen", "2"]
    lines = [line.split() for line in run("growth.py", *sizes)]
    rows = [line for line in lines if line[1:2] in (["-"], ["files"])]
    assert [row[:2] for row in rows] == [[n, s] for s in ("-", "files") for n in ("20", "30")]
