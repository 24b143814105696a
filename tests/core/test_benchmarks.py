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


def test_gpu() -> None:
    """The whole script, on the CPU."""
    pytest.importorskip("torchvision", reason="needs pncs-flower[simulation]")
    options = ("--layers", "classifier.6", "--rounds", "2", "--examples", "8")
    lines = run("gpu.py", "--device", "cpu", *options)
    assert [line[:13] for line in lines[2:]] == ["cpu, float32 ", "cpu, float32 ", "cpu, bfloat16"]
    assert all("2 of 2 rounds as on the CPU" in line for line in lines[2:4])


@pytest.mark.parametrize("script", ["similarity.py", "sketch.py", "subset.py", "fit.py", "gpu.py"])
def test_help_gives_examples(script: str) -> None:
    assert any(line.startswith(f"python benchmarks/{script}") for line in run(script, "--help"))


def test_engine() -> None:
    """The script itself fails if engine and plain loop end with other weights."""
    sizes = ["--clients", "3", "--rounds", "2", "--server-clients", "30", "--server-rounds", "4"]
    lines = run("engine.py", *sizes)
    assert lines[2].split()[0] == "3"
    assert lines[-1].split()[:3] == ["30", "20", "10"]
