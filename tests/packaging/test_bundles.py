"""What `flwr run` ships: Flower App Bundles that are complete."""

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("pncs_flower", "strategies", "clients", "simulations")


def modules(*folders: str) -> set[str]:
    return {
        path.relative_to(ROOT).as_posix()
        for folder in folders
        for path in (ROOT / folder).rglob("*.py")
    }


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy to build in, since building leaves files behind."""
    copy = tmp_path_factory.mktemp("checkout") / "app"
    copy.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", ".gitignore"):
        shutil.copy(ROOT / name, copy)
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
    return copy


def python(*arguments: str, cwd: Path) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env={**os.environ, "FLWR_DISABLE_UPDATE_CHECK": "1", "FLWR_TELEMETRY_ENABLED": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def bundle(app: Path) -> zipfile.ZipFile:
    python("-c", "from flwr.cli.app import app; app()", "build", cwd=app)
    return zipfile.ZipFile(next(app.glob("*.fab")))


@pytest.fixture(scope="module")
def root_bundle(copy: Path) -> Iterator[zipfile.ZipFile]:
    with bundle(copy) as fab:
        yield fab


def test_the_root_bundle_has_every_module_and_nothing_else(root_bundle: zipfile.ZipFile) -> None:
    inside = set(root_bundle.namelist())
    assert inside == modules(*FOLDERS) | {"pyproject.toml", ".info/CONTENT"}


@pytest.mark.minutes
def test_the_root_bundle_runs_on_its_own_code(root_bundle: zipfile.ZipFile, tmp_path: Path) -> None:
    root_bundle.extractall(tmp_path / "fab")
    code = (
        "import sys; sys.path.insert(0, 'fab')\n"
        "import pncs_flower.simulations.server_app, pncs_flower.simulations.client_app\n"
        "files = {m.__file__ for n, m in sys.modules.items() if n.split('.')[0] == 'pncs_flower'}\n"
        "print([file for file in files if not file.startswith(sys.argv[1])])"
    )
    assert python("-c", code, str(tmp_path / "fab"), cwd=tmp_path) == "[]\n"


@pytest.mark.minutes
def test_the_bundle_of_the_simulation_has_no_code(copy: Path) -> None:
    with bundle(copy / "simulations") as fab:
        assert set(fab.namelist()) == {"pyproject.toml", "__init__.py", ".info/CONTENT"}
