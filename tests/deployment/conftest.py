"""A SuperLink and three SuperNodes for the tests that do not harm them, and the app they run."""

import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from apps import deployed
from deployment.prestarted import prestarted
from federation import Federation, Run, Scalar

TESTS = Path(__file__).resolve().parent.parent
NUM_NODES = 3


class Deployed:
    """The tests' app on a federation."""

    def __init__(self, federation: Federation, folder: Path) -> None:
        self.federation = federation
        self._folder = folder
        self._app = folder / "app"
        files = shutil.ignore_patterns("__pycache__")
        shutil.copytree(TESTS / "apps", self._app / "apps", ignore=files)
        settings = (f"{name} = {json.dumps(value)}\n" for name, value in deployed.SETTINGS.items())
        (self._app / "pyproject.toml").write_text(
            '[project]\nname = "deployed"\nversion = "1.0.0"\ndescription = "Tests"\n'
            'license = "Apache-2.0"\ndependencies = []\n\n'
            '[tool.flwr.app]\npublisher = "tests"\n\n[tool.flwr.app.components]\n'
            'serverapp = "apps.deployed:server_app"\nclientapp = "apps.deployed:client_app"\n\n'
            "[tool.flwr.app.config]\n" + "".join(settings)
        )

    def submit(self, name: str, **settings: Scalar) -> tuple[Run, Path]:
        """Submit a run, and return it with the folder for what it leaves."""
        output = self._folder / name
        output.mkdir(exist_ok=True)
        return self.federation.submit(self._app, {**settings, "output": str(output)}), output


def read_history(output: Path) -> list[dict[str, Any]]:
    """Return the records of the rounds that are done."""
    path = output / "history.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def outcome(output: Path) -> Mapping[str, Any]:
    """Return what must not depend on the engine: all but times, and bytes as they are."""
    history = [
        {name: value for name, value in record.items() if name != "seconds"}
        for record in read_history(output)
    ]
    with np.load(output / "weights.npz", allow_pickle=False) as weights:
        bits = {name: weights[name].tobytes() for name in weights.files}
    return {
        "history": history,
        "weights": bits,
        "metrics": json.loads((output / "metrics.json").read_text()),
    }


def start_nodes(federation: Federation, count: int = NUM_NODES) -> list[Any]:
    nodes = [
        federation.start_supernode(f"node-{i}", {"partition-id": i, "num-partitions": count})
        for i in range(count)
    ]
    federation.wait_for(nodes)
    return nodes


@pytest.fixture(scope="session")
def programs() -> Iterator[Path]:
    # A socket's path is at most 107 bytes, and pytest's folders are long.
    with tempfile.TemporaryDirectory() as folder, prestarted(Path(folder) / "programs") as programs:
        yield programs


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory, programs: Path) -> Iterator[Deployed]:
    folder = tmp_path_factory.mktemp("deployment")
    with Federation(folder / "federation", programs=programs) as federation:
        start_nodes(federation)
        yield Deployed(federation, folder)
