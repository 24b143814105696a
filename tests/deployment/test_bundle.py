"""`flwr run .` brings the library along: SuperNodes need only Flower and PyTorch."""

import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from deployment.conftest import NUM_NODES, TESTS, start_nodes
from federation import Federation

from pncs_flower.simulations.run.folder import read_rounds

pytestmark = [pytest.mark.superlink, pytest.mark.minutes, pytest.mark.timeout(1800)]

SETTINGS: dict[str, Any] = {
    "num-rounds": 1,
    "model": "linear",
    "partition": "dirichlet",
    "device": "cpu",
    "seed": 3,
}


@pytest.fixture(scope="module")
def bare_programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment that has all of this one's packages but ours."""
    folder = tmp_path_factory.mktemp("bare") / "env"
    venv.create(folder, with_pip=False, symlinks=True)
    packages = next(folder.glob("lib/python*/site-packages"))
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if "pncs" not in entry.name:
            (packages / entry.name).symlink_to(entry)
    programs = folder / "bin"
    for name in ("flower-supernode", "flower-superexec", "flwr-clientapp"):
        text = (Path(sysconfig.get_path("scripts")) / name).read_text()
        (programs / name).write_text(f"#!{programs / 'python'}\n" + text.partition("\n")[2])
        (programs / name).chmod(0o755)
    return programs


def test_the_environment_lacks_the_library_and_has_flower(bare_programs: Path) -> None:
    code = "import flwr, importlib.util as u; print(u.find_spec('pncs_flower'))"
    command = [bare_programs / "python", "-c", code]
    done = subprocess.run(command, cwd="/", capture_output=True, text=True, check=False)
    assert done.stdout == "None\n", done.stderr


def test_supernodes_without_the_library_run_the_root_bundle(
    bare_programs: Path, tmp_path: Path
) -> None:
    with Federation(tmp_path / "federation", programs=bare_programs) as federation:
        start_nodes(federation)
        run = federation.submit(TESTS.parent, {**SETTINGS, "output-dir": str(tmp_path / "out")})
        status, details = federation.wait(run, timeout=1500)
        assert status == "finished:completed", f"{details}\n{run.log.read_text()}"
    assert result(tmp_path / "out") == result(in_process(tmp_path / "in-process"))


def in_process(output: Path) -> Path:
    options = [f"--set={name}={value}" for name, value in SETTINGS.items()]
    command = [
        *(sys.executable, "-c", "from pncs_flower.simulations.cli import main; main()", "run"),
        *("--engine", "in-process", "--clients", str(NUM_NODES), "--output", str(output)),
    ]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return output


def result(output: Path) -> tuple[list[Any], dict[str, bytes]]:
    choices = [(r["chosen"], r["delivered"], r["mean_similarity"]) for r in read_rounds(output)]
    with np.load(output / "weights.npz", allow_pickle=False) as weights:
        return choices, {name: weights[name].tobytes() for name in weights.files}
