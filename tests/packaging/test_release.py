"""A release: one version, files that PyPI and Flower Hub take, and a wheel that runs by itself."""

import json
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def python(*arguments: str, cwd: Path = ROOT) -> str:
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def read(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def known() -> set[str]:
    """The files that git knows, and are there."""
    files = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.split("\0")
    if files == [""]:
        pytest.skip("this is no clone: what belongs into a release is what git knows")
    return {name for name in files if (ROOT / name).is_file()}


@pytest.fixture(scope="module")
def dist(known: set[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sdist, and the wheel that is built from it."""
    source, dist = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    for name in known:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes((ROOT / name).read_bytes())
    python("-m", "build", "--no-isolation", "--outdir", str(dist), cwd=source)
    return dist


def test_one_version() -> None:
    version = PROJECT["version"]
    app = tomllib.loads(read("simulations/pyproject.toml"))["project"]
    assert app["version"] == version, "make format copies it"
    assert f"\nversion: {version}\n" in read("CITATION.cff"), "make format copies it"
    headings = [line for line in read("CHANGELOG.md").splitlines() if line.startswith("## [")]
    assert headings[0] == "## [Unreleased]"
    assert headings[1].startswith(f"## [{version}]")


@pytest.mark.minutes
def test_pypi_takes_the_files(dist: Path) -> None:
    pytest.importorskip("twine")
    files = [str(path) for path in dist.iterdir()]
    assert len(files) == 2
    python("-m", "twine", "check", "--strict", *files)


def test_an_sdist_has_the_licence_and_all_that_is_installed(dist: Path) -> None:
    with tarfile.open(next(dist.glob("*.tar.gz"))) as file:
        inside = {name.partition("/")[2] for name in file.getnames()}
    assert {"LICENSE", "README.md", "pyproject.toml", "pncs_flower/py.typed"} <= inside
    assert "simulations/pyproject.toml" in inside


def test_the_wheel_installs_one_name_with_every_module_and_the_app(
    known: set[str], dist: Path
) -> None:
    with zipfile.ZipFile(next(dist.glob("*.whl"))) as wheel:
        shipped = {name for name in wheel.namelist() if ".dist-info/" not in name}
    expected = {"pncs_flower/py.typed"}
    for name in known:
        folder, kind = name.partition("/")[0], name.rpartition(".")[2]
        kinds = ("py", "toml", "html", "css", "js") if folder == "simulations" else ("py",)
        if folder in ("pncs_flower", "strategies", "clients", "simulations") and kind in kinds:
            expected.add(name if folder == "pncs_flower" else f"pncs_flower/{name}")
    assert shipped == expected


def test_the_wheel_alone_runs_the_two_lines(dist: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(next(dist.glob("*.whl"))) as file:
        file.extractall(tmp_path / "site")
    code = (
        "import runpy, sys; sys.path.insert(0, sys.argv[1])\n"
        "runpy.run_path(sys.argv[2], run_name='__main__')"
    )
    script = str(ROOT / "tests" / "packaging" / "two_lines.py")
    shown = python("-c", code, str(tmp_path / "site"), script, cwd=tmp_path)
    assert shown.splitlines()[-1] == str(tmp_path / "site" / "pncs_flower")


def test_the_hub_takes_the_app(tmp_path: Path) -> None:
    """It has a licence, the Flower that it is for, and all of the code."""
    app = tmp_path / "pncs-flower"
    python(str(ROOT / ".ci" / "hub_app.py"), str(app))
    built = python("-c", BUILD, str(app), cwd=tmp_path)
    facts: dict[str, Any] = json.loads(built.splitlines()[-1])
    assert facts["format"] == 1
    assert facts["oldest"] == "1.42"
    assert facts["target"] == "1.42.0"
    with zipfile.ZipFile(tmp_path / "app.fab") as fab:
        inside = set(fab.namelist())
        config = tomllib.loads(fab.read("pyproject.toml").decode())
    code = {
        path.relative_to(ROOT).as_posix()
        for folder in ("pncs_flower", "strategies", "clients", "simulations")
        for path in (ROOT / folder).rglob("*.py")
    }
    assert inside == code | {"LICENSE", "pyproject.toml", ".info/CONTENT"}
    app_at_the_root = tomllib.loads(read("pyproject.toml"))["tool"]["flwr"]["app"]
    assert config["project"]["version"] == PROJECT["version"]
    assert config["tool"]["flwr"]["app"]["config"] == app_at_the_root["config"]


BUILD = """
import json, sys
from pathlib import Path
from flwr.cli.build import build_fab_from_files
from flwr.cli.utils import collect_files, filter_paths_for_publish

files = collect_files(Path(sys.argv[1]))
sent = set(filter_paths_for_publish(files))
assert sent >= {"LICENSE", "README.md", "pyproject.toml"}, sent
fab, facts = build_fab_from_files(files)
Path("app.fab").write_bytes(fab)
print(json.dumps({"format": facts.fab_format_version, "oldest": facts.flwr_version_min,
                  "target": facts.flwr_version_target}))
"""
