"""The speed benchmarks run and print their tables, at sizes that take no time."""

import os
import subprocess
import sys
import tempfile
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


@pytest.mark.minutes
def test_peers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be installed is skipped; the others end with the plain loop's model."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    peers = ["blazefl", "ours", "ours-workers", "flower-in-process"]
    rows = peer_rows("--works", "mlp-100", "--peers", *peers, "--environments", str(tmp_path))
    assert list(rows) == ["plain", *peers]
    assert rows.pop("blazefl")[:3] == ["skipped:", "not", "installed:"]
    assert_figures(rows)


@pytest.mark.minutes
def test_peers_of_other_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    if not (BENCHMARKS.parent / "build" / "peers").is_dir():
        pytest.skip("their environments are made by: python benchmarks/peers.py --quick")
    monkeypatch.setenv("PIP_NO_INDEX", "1")  # tests need no network: they are there, or skipped
    libraries = ("blazefl", "blazefl-threads", "blazefl-processes", "pfl", "pfl-processes")
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


SCRIPTS = [
    "similarity.py",
    "sketch.py",
    "subset.py",
    "fit.py",
    "gpu.py",
    "combination_cost.py",
    "combinations.py",
    "peers.py",
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
