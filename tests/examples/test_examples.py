"""The examples train, by the two lines and without them, and their commands run as printed."""

import importlib
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from flwr.app import Context, RecordDict

from pncs_flower.simulations.run.in_process import InProcessGrid
from pncs_flower.strategies import PNCS, RoundRecord, SketchedMean

EXAMPLES = Path(__file__).parents[2] / "examples"
NEEDS = {"numpy": (), "sklearn": ("sklearn",), "pytorch": ("torch", "sklearn")}
NEEDS["last-layer"] = NEEDS["pytorch"]
NEEDS["lora"] = ("torch", "transformers", "peft")
MODULES = ("task", "client_app", "server_app")
ROUNDS, CLIENTS = 2, 10

Load = Callable[[Path], tuple[ModuleType, ModuleType]]


@pytest.fixture(params=NEEDS)
def example(request: pytest.FixtureRequest) -> Path:
    import_all(request.param)
    return EXAMPLES / request.param


def import_all(name: str) -> None:
    """Skip a test of an example if a package is missing."""
    for package in NEEDS[name]:
        where = f"the extra of examples/{name}" if name == "lora" else "pncs-flower[simulation]"
        pytest.importorskip(package, reason=f"needs {package}, of {where}")


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Iterator[Load]:
    """Import an example's modules, which have the same names in each."""

    def load_from(folder: Path) -> tuple[ModuleType, ModuleType]:
        monkeypatch.syspath_prepend(str(folder))
        return importlib.import_module("client_app"), importlib.import_module("server_app")

    yield load_from
    for name in MODULES:
        sys.modules.pop(name, None)


def settings(folder: Path) -> dict[str, Any]:
    app = tomllib.loads((folder / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    return {**app["config"], "num-rounds": ROUNDS}


def train(client: ModuleType, server: ModuleType, config: dict[str, Any]) -> None:
    grid = InProcessGrid(client.app, CLIENTS, config)
    server.app(grid, Context(1, 1, {}, RecordDict(), config))


def history_of(server: ModuleType) -> list[PNCS]:
    """Have the strategy that the server makes come here too."""
    made: list[PNCS] = []

    def make(*args: Any, **options: Any) -> PNCS:
        made.append(PNCS(*args, **options))
        return made[-1]

    server.PNCS = make  # type: ignore[attr-defined]
    return made


def scores(output: str) -> list[float]:
    return [float(number) for number in re.findall(r"^round \d+: \w+ ([\d.]+)$", output, re.M)]


def test_it_trains(example: Path, load: Load, capsys: pytest.CaptureFixture[str]) -> None:
    client, server = load(example)
    made = history_of(server)
    train(client, server, settings(example))
    history: list[RoundRecord] = made[0].history
    assert [len(record.delivered) for record in history] == [3] * ROUNDS
    assert [record.rejected for record in history] == [{}] * ROUNDS
    assert len(scores(capsys.readouterr().out)) == 1 + ROUNDS


@pytest.mark.minutes
def test_without_the_two_lines_it_is_an_ordinary_flower_app(
    example: Path, load: Load, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed = 0
    for name in MODULES:
        before = (example / f"{name}.py").read_text()
        after = re.sub(r"^( *\S+ = ).*  # was: (.*)$", r"\1\2", before, flags=re.M)
        lines = zip(before.splitlines(), after.splitlines(), strict=True)
        changed += sum(old != new for old, new in lines)
        after = re.sub(r"^from pncs_flower.*\n", "", after, flags=re.M)
        assert "pncs" not in after.lower()
        (tmp_path / f"{name}.py").write_text(after)
    assert changed == 2
    train(*load(tmp_path), settings(example))
    assert len(scores(capsys.readouterr().out)) == 1 + ROUNDS


def test_only_the_last_layer_travels(load: Load) -> None:
    pytest.importorskip("torch", reason="needs pncs-flower[simulation]")
    client, server = load(EXAMPLES / "last-layer")
    made = history_of(server)
    train(client, server, settings(EXAMPLES / "last-layer"))
    last_layer = (64 * 10 + 10) * 4
    sent = made[0].history[0].bytes_up["training"]
    assert 3 * last_layer <= sent < 3 * last_layer + 3 * 600  # headers, names and metrics


@pytest.mark.parametrize("rule", [PNCS, SketchedMean])
def test_only_adapters_travel_and_the_loss_falls(
    rule: Any, load: Load, capsys: pytest.CaptureFixture[str]
) -> None:
    import_all("lora")
    client, server = load(EXAMPLES / "lora")
    made: list[Any] = []

    def make(base: Any, **options: Any) -> Any:
        made.append(rule(base, num_selected=3))
        return made[-1]

    server.PNCS = make  # type: ignore[attr-defined]
    train(client, server, settings(EXAMPLES / "lora"))
    output = capsys.readouterr().out
    said = re.search(r"adapters: ([\d,]+) numbers travel, ([\d,]+) stay", output)
    assert said
    travels, stays = (int(number.replace(",", "")) for number in said.groups())
    assert travels * 10 < stays
    for record in made[0].history:
        # Beside the values, their names and headers.
        assert 3 * 4 * travels <= record.bytes_up["training"] < 1.3 * 3 * 4 * travels
        assert record.bytes_down["pre-round"] < 1.3 * 10 * 4 * travels
        assert record.rejected == {}
    first, *_, last = scores(output)
    assert last < first - 0.2


def commands(example: Path) -> list[str]:
    return re.findall(r"^\$ (.*)$", (example / "README.md").read_text(), re.M)


def test_the_commands_are_the_same_for_all(example: Path) -> None:
    assert commands(example) == commands(EXAMPLES / "numpy")
    assert commands(example)[0] == ". ../../.venv/bin/activate"


@pytest.mark.ray
@pytest.mark.minutes
def test_flwr_run_as_printed(tmp_path: Path) -> None:
    """In a world of its own, whose processes end with it."""
    shutil.copytree(
        EXAMPLES / "numpy", tmp_path / "app", ignore=shutil.ignore_patterns("__pycache__")
    )
    home = tmp_path / "home"
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    http, control = (str(s.getsockname()[1]) for s in sockets)
    for s in sockets:
        s.close()
    scripts = os.pathsep.join((str(Path(sys.executable).parent), sysconfig.get_path("scripts")))
    arguments = shlex.split(commands(EXAMPLES / "numpy")[1])
    code = (
        "import subprocess, sys\n"
        "from pncs_flower.simulations.machine.processes import adopt_orphans, stop_descendants\n"
        "adopt_orphans()\n"
        "try:\n"
        "    subprocess.run(sys.argv[1:], check=True, timeout=400)\n"
        "finally:\n"
        "    stop_descendants()\n"
    )
    for _ in range(3):  # a busy machine does not keep the limit that Flower has here
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments],
            cwd=tmp_path / "app",
            env={
                **os.environ,
                "PATH": scripts + os.pathsep + os.environ.get("PATH", ""),
                "FLWR_HOME": str(home),
                "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": http,
                "FLWR_LOCAL_CONTROL_API_PORT": control,
                "FLWR_TELEMETRY_ENABLED": "0",
                "FLWR_DISABLE_UPDATE_CHECK": "1",
                "RAY_USAGE_STATS_ENABLED": "0",
                "NO_COLOR": "1",
            },
            capture_output=True,
            text=True,
            check=False,
        )
        if "Failed to start local SuperLink within" not in done.stdout + done.stderr:
            break
    assert done.returncode == 0, done.stdout + done.stderr
    distances = scores(re.sub(r"\x1b\[[0-9;]*m", "", done.stdout))
    assert len(distances) == 11, done.stdout
    assert distances[-1] < distances[0] / 2
