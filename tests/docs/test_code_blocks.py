"""What the pages show is run: Python as it stands there, commands as far as their options."""

import builtins
import dis
import importlib
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import CodeType, SimpleNamespace
from typing import Any

import click
import pytest
import typer
from apps import numpy_app
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from pncs_flower import strategies
from pncs_flower.clients import summary_mod
from pncs_flower.simulations import InProcessGrid
from pncs_flower.simulations.cli import app as pncs
from pncs_flower.simulations.cli.console import parse_setting
from pncs_flower.simulations.config import Config, default_run_config

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "examples").rglob("README.md"),
        ROOT / "simulations" / "README.md",
    ]
)
FILE = re.compile(r"# --- ([\w/]+\.py) ---\n")


def blocks(page: Path, language: str) -> list[str]:
    pattern = rf"^ *```{language}\n(.*?)^ *```"
    return re.findall(pattern, page.read_text(encoding="utf-8"), re.M | re.S)


def with_blocks(language: str) -> list[Any]:
    found = [page for page in PAGES if blocks(page, language)]
    return [pytest.param(page, id=page.relative_to(ROOT).as_posix()) for page in found]


def given() -> dict[str, Any]:
    """What pages leave to the reader: an app, its initial weights, a grid, a strategy that ran."""
    strategy = strategies.PNCS(FedAvg())
    grid = InProcessGrid(numpy_app.make_app(summary_mod), 10)
    strategy.start(grid, numpy_app.initial_arrays(), num_rounds=1)
    return {
        "strategy": strategy,
        "wandb": SimpleNamespace(init=lambda project: None),
        "log_to": lambda run: print,
        **{name: getattr(strategies, name) for name in strategies.__all__},
        "FedAvg": FedAvg,
        "ClientApp": ClientApp,
        "MyClient": NumPyClient,
        "client_app": numpy_app.make_app(summary_mod),
        "summary_mod": summary_mod,
        "fraction_evaluate": 0.5,
        "grid": InProcessGrid(numpy_app.make_app(summary_mod), 10),
        "initial_arrays": numpy_app.initial_arrays(),
    }


def global_names(code: CodeType) -> Iterator[str]:
    """Yield the names that functions look up when they are called, which may never be."""
    for step in dis.get_instructions(code):
        if step.opname == "LOAD_GLOBAL":
            yield step.argval
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from global_names(each)


def run(block: str, names: dict[str, Any]) -> None:
    # Two rounds show what fifty would.
    code = compile(re.sub(r"num_rounds=\d+", "num_rounds=2", block), "block", "exec")
    exec(code, names)
    unknown = {name for name in global_names(code) if name not in names}
    assert unknown <= set(vars(builtins)), "names that are nowhere made"
    if "def main(grid, context)" in block:
        names["main"](names["grid"], None)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder to be in, from which Python imports the files that a page shows."""
    before = set(sys.modules)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", None) == str(tmp_path / f"{name}.py"):
            del sys.modules[name]


@pytest.mark.parametrize("page", with_blocks("python"))
def test_python_runs_as_it_stands_there(page: Path, folder: Path) -> None:
    names = given()
    for block in blocks(page, "python"):
        if file := FILE.match(block):
            (folder / file[1]).write_text(block, encoding="utf-8")
            importlib.invalidate_caches()
        run(block, names)


@pytest.mark.parametrize("page", with_blocks("toml"))
def test_toml_is_toml(page: Path) -> None:
    for block in blocks(page, "toml"):
        assert tomllib.loads(block)


@pytest.mark.parametrize("page", with_blocks("console"))
def test_commands_exist_with_their_options(page: Path, folder: Path) -> None:
    for block in blocks(page, "console"):
        script = script_of(block)
        done = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True)
        assert done.returncode == 0, f"{done.stderr}\n{script}"
        for command in commands_of(script):
            check_command(command)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_options_that_are_named_in_a_sentence_exist(page: Path) -> None:
    text = re.sub(r"^ *```.*?^ *```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    for code in re.findall(r"`(pncs [^`]+)`", text):
        words = re.sub(r"\s+", " ", code).split(" ")[1:]
        command: Any = typer.main.get_command(pncs)
        while words and words[0] in getattr(command, "commands", {}):
            command = command.commands[words.pop(0)]
        if hasattr(command, "commands") and words:
            # A line of a sweep, such as pncs p=4, is none.
            assert words[0].isupper() or "=" in words[0] or words[0].startswith("--"), code
        known = {option for each in command.params for option in each.opts + each.secondary_opts}
        options = {word.partition("=")[0] for word in words if word.startswith("--")}
        assert options <= known | {"--help", "--traceback"}, code


def script_of(block: str) -> str:
    """Return what a shell gets to read: the lines without their prompts."""
    return re.sub(r"^ *\$ ", "", block, flags=re.M)


def commands_of(script: str) -> Iterator[list[str]]:
    """Yield the words of each command, with what the shell would work out replaced."""
    script = re.sub(r"<<'?END'?(.*?)\nEND\n", r"\1\n", script, flags=re.S).split("\n[")[0]
    script = re.sub(r"\\\n", " ", re.sub(r"(^|\s)#.*", "", script))
    script = re.sub(r"\$\(\(.*?\)\)", "9094", script)
    script = re.sub(r"\$\([^)]*\)|\$\w+", "X", script)
    for line in script.splitlines():
        for part in re.split(r"\s(?:&&|&|\||done|do)(?=\s|$)|;\s*(?:do|done)?", " " + line):
            words = shlex.split(part)
            words = [word for word in words if not re.match(r"\d?>|\d?<", word)]
            while words and re.fullmatch(r"\w+=.*", words[0]):
                words.pop(0)
            if words:
                yield words


def check_command(words: list[str]) -> None:
    program, *rest = words
    if program == "pncs":
        check_pncs(rest)
    elif program in ("flwr", "ray"):
        command = flwr_command() if program == "flwr" else ray_command()
        while rest and rest[0] in getattr(command, "commands", {}):
            command = command.commands[rest.pop(0)]
        known = {option for each in command.params for option in each.opts + each.secondary_opts}
        assert options_of(rest) <= known, " ".join(words)
    elif program in ("flower-superlink", "flower-supernode", "flower-superexec"):
        shown = help_of(program)
        assert all(option in shown for option in options_of(rest)), " ".join(words)
    elif program in ("python", "python3") and rest[0].endswith(".py"):
        text = (ROOT / rest[0]).read_text(encoding="utf-8")
        shared = (ROOT / "benchmarks" / "measure.py").read_text(encoding="utf-8")
        for word in rest[1:]:
            assert not word.startswith("--") or f'"{word}"' in text + shared, " ".join(words)
    elif program == "make":
        makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
        for target in rest:
            assert re.search(rf"^{target}:", makefile, re.M), " ".join(words)
    elif program == "pip":
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        for extras in re.findall(r"\[([\w,]+)\]", " ".join(rest)):
            assert set(extras.split(",")) <= set(project["optional-dependencies"]), extras


def options_of(words: list[str]) -> set[str]:
    return {word.partition("=")[0] for word in words if word.startswith("--")}


@cache
def flwr_command() -> Any:
    from flwr.cli.app import app

    return typer.main.get_command(app)


def ray_command() -> Any:
    return pytest.importorskip("ray.scripts.scripts").cli


@cache
def help_of(program: str) -> str:
    """Return what one of Flower's programs says of its options."""
    path = shutil.which(program, path=sysconfig.get_path("scripts")) or shutil.which(program)
    assert path, f"{program} is not installed"
    done = subprocess.run([path, "--help"], text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def check_pncs(words: list[str]) -> None:
    command: Any = typer.main.get_command(pncs)
    if "--help" in words:
        words = words[: words.index("--help")]
    name = "pncs"
    while hasattr(command, "commands") and words:
        name = words.pop(0)
        assert name in command.commands, f"there is no command {name}"
        command = command.commands[name]
    if hasattr(command, "commands") or not words:
        return
    try:
        parsed = command.make_context(name, [*words]).params
    except click.UsageError as error:
        if "does not exist" in error.format_message():
            return  # a file that the page has one make, such as sweep.toml
        raise AssertionError(f"pncs {name} {words}: {error.format_message()}") from None
    if name == "run":
        settings = dict(parse_setting(text) for text in parsed["settings"] or [])
        if parsed["strategy"] and ":" not in parsed["strategy"]:
            settings["strategy"] = parsed["strategy"]
        Config.from_run_config({**default_run_config(), **settings})


def test_what_is_wrong_would_be_seen() -> None:
    with pytest.raises(AssertionError, match="nowhere made"):
        run("def f():\n    return nothing_that_is_there\n", {})
    with pytest.raises(AssertionError, match="frobnicate"):
        check_command(["pncs", "frobnicate"])
    with pytest.raises(AssertionError, match="No such option"):
        check_command(["pncs", "run", "--rouns", "3"])
    with pytest.raises(ValueError, match="nothing"):
        check_command(["pncs", "run", "--set", "nothing=1"])
    with pytest.raises(AssertionError, match="steram"):
        check_command(["flwr", "run", ".", "--steram"])
    assert [*commands_of("for i in 0 1; do\n  flwr run . --port $((1 + i)) > x 2>&1 &\ndone")] == [
        ["for", "i", "in", "0", "1"],
        ["flwr", "run", ".", "--port", "9094", "x"],
    ]
