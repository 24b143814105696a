"""The speed benchmarks run and print their tables, at sizes that take no time."""

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


def run(script: str, *arguments: str) -> list[str]:
    """Run a benchmark as a user does and return the lines that it prints."""
    command = [sys.executable, str(BENCHMARKS / script), *arguments]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout.splitlines()


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_similarity(library: str) -> None:
    """With torch it is the path of `--device cuda`, on the CPU."""
    lines = run("similarity.py", "--rows", "5", "--values", "300", "--library", library)
    assert lines[-1].split()[:2] == ["5", "300"]


def test_sketch() -> None:
    lines = run("sketch.py", "--width", "64", "--examples", "8", "--sketches", "count:16@int8")
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


def test_gpu() -> None:
    """The whole script, on the CPU."""
    pytest.importorskip("torchvision", reason="needs pncs-flower[simulation]")
    options = ("--layers", "classifier.6", "--rounds", "2", "--examples", "8")
    lines = run("gpu.py", "--device", "cpu", *options)
    assert [line[:13] for line in lines[2:]] == ["cpu, float32 ", "cpu, float32 ", "cpu, bfloat16"]
    assert all("2 of 2 rounds as on the CPU" in line for line in lines[2:4])


@pytest.mark.minutes
def test_combinations(tmp_path: Path) -> None:
    """A second start computes nothing anew, and one with faults is another run."""
    output = tmp_path / "results.jsonl"
    options = ["--quick", "--workers", "1", "--tune", ".03,.3", "--output", str(output)]
    options += ["--lines", "all,uniform,sketched-mean,uniform/fedprox-.1"]
    options += ["--line", 'name = "mine", strategy = "PNCS", combine = "mifa", queue_length = 4']
    lines = run("combinations.py", *options)
    names = {line.split("|")[1].strip() for line in lines[5:]}
    assert names == {
        "all",
        "uniform",
        "sketched-mean",
        "uniform/fedprox-.1",
        "mine",
    }
    done = output.read_text("utf-8")
    assert len(done.splitlines()) == 5 * (2 + 2)
    output.write_text(done + done[:50], "utf-8")  # a line that was being written
    assert run("combinations.py", *options)[3:] == lines[3:]
    assert output.read_text("utf-8") == done
    faults = ["--lose", "0.2", "--churn", "0.2", "--hostile", "0.1", "--attack", "false-sketch"]
    faulty = run("combinations.py", *options, *faults)
    assert len(faulty) == len(lines)
    assert faulty[3:] != lines[3:]


SCRIPTS = [
    "similarity.py",
    "sketch.py",
    "subset.py",
    "fit.py",
    "gpu.py",
    "combination_cost.py",
    "combinations.py",
]


@pytest.mark.parametrize("script", SCRIPTS)
def test_help_gives_examples(script: str) -> None:
    assert any(line.startswith(f"python benchmarks/{script}") for line in run(script, "--help"))


def test_engine() -> None:
    """The script itself fails if engine and plain loop end with other weights."""
    sizes = ["--clients", "3", "--rounds", "2", "--server-clients", "30", "--server-rounds", "4"]
    lines = run("engine.py", *sizes)
    assert lines[2].split()[0] == "3"
    assert lines[-1].split()[:3] == ["30", "20", "10"]
