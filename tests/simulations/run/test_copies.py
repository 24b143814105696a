"""What travels to the nodes of a cluster: which files, under which names, and the code."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from images import write_images
from typer.testing import CliRunner

from pncs_flower.simulations.cli import app
from pncs_flower.simulations.config import Config, default_run_config
from pncs_flower.simulations.machine import surroundings
from pncs_flower.simulations.run import cluster
from pncs_flower.simulations.task import inputs_fingerprint, load_inputs

DIGITS = Config.from_run_config(default_run_config())


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def images(tmp_path: Path) -> Config:
    write_images(tmp_path / "images")
    return replace(DIGITS, dataset="cifar10", data_dir=str(tmp_path / "images"))


def laid(config: Config) -> Config:
    """Have what a run reads laid out on this machine; return its settings there."""
    for name, files in cluster._read(config).values():
        cluster._lay(name, files, lambda folder, files=files: cluster._link(files, folder))
    return cluster.on_any_machine(config)


def test_a_run_without_files_stays_as_it_is(home: Path) -> None:
    assert laid(DIGITS) == DIGITS
    assert not home.exists()


def test_a_run_reads_the_same_from_the_copies(home: Path, images: Config) -> None:
    moved = laid(images)
    assert moved.data_dir == f"~/.cache/pncs-flower/copies/data-{inputs_fingerprint(images)}"
    assert inputs_fingerprint(moved) == inputs_fingerprint(images)
    assert (load_inputs(moved).train == load_inputs(images).train).all()


def test_files_that_were_moved_since_are_found_anew(home: Path, images: Config) -> None:
    first = laid(images)
    elsewhere = Path(images.data_dir).rename(home.parent / "elsewhere")
    second = laid(replace(images, data_dir=str(elsewhere)))
    assert second.data_dir == first.data_dir
    assert all(path.exists() for path in Path(second.data_dir).expanduser().glob("*/*/*"))
    assert list(Path(second.data_dir).expanduser().parent.glob(".partial*")) == []


def test_what_a_killed_process_has_left_is_removed(home: Path, images: Config) -> None:
    left = home / ".cache" / "pncs-flower" / "copies" / ".partial" / "train"
    left.mkdir(parents=True)
    folder = Path(laid(images).data_dir).expanduser()
    assert {path.name for path in folder.parent.iterdir()} == {folder.name, "lock"}


def test_a_run_is_checked_on_the_nodes_with_its_rule_or_refused_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent: list[object] = []

    def join(address: str, strategies: object = ()) -> None:
        sent.append(strategies)
        raise ValueError("that is all")

    monkeypatch.setattr(surroundings, "cluster_address", lambda: "a:1")
    monkeypatch.setattr(cluster, "joined", join)
    done = CliRunner().invoke(app, ["run", "--strategy", "pncs_flower.strategies:PNCSRule"])
    assert "that is all" in done.output
    assert sent == [["pncs_flower.strategies:PNCSRule"]]
    done = CliRunner().invoke(app, ["run", "--set", "device=cpu", "--logical-gpus", "1"])
    assert "logical-gpus = 1, but clients are on the cluster" in " ".join(done.output.split())
    assert len(sent) == 1  # it was refused before the cluster was joined


@pytest.mark.minutes
def test_the_code_runs_alone_with_a_rule_of_a_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = tmp_path / "user"
    user.mkdir()
    (user / "mine.py").write_text("from pncs_flower.strategies import Uniform\n")
    package = user / "ours" / "rules"
    package.mkdir(parents=True)
    (package / "new.py").write_text("")
    monkeypatch.syspath_prepend(str(user))
    code = tmp_path / "code"
    code.mkdir()
    cluster.gather_code(code, ["pncs", "mine:Rule", "ours.rules.new:Rule", "absent:Rule"])
    assert (code / "mine.py").is_file()
    assert (code / "ours" / "rules" / "new.py").is_file()
    script = "import pncs_flower.simulations.client_app as app; print(app.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=code, env={}, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == str(code / "pncs_flower" / "simulations" / "client_app.py")
