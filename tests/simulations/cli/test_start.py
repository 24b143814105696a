"""The command line answers at once what needs no run, and takes a sweep where it takes a run."""

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pncs_flower.simulations.cli import app

HEAVY = ("torch", "torchvision", "ray", "flwr", "matplotlib", "sklearn", "scipy", "pandas")


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--help"],
        ["run", "--set", "lr=abc"],
        ["run", "--resume", "absent"],
        ["reproduce", "table9"],
        ["sweep", "absent.toml"],
        ["compare", "pnsc"],
        ["data", "list"],
    ],
)
def test_what_needs_no_run_waits_for_no_import(arguments: list[str]) -> None:
    """Imports, since times on a busy machine say little."""
    assert imported(arguments) & {*HEAVY} == set()


def test_the_tab_key_waits_for_no_import() -> None:
    first = (
        "import functools, os\n"
        "app = functools.partial(app, prog_name='pncs')\n"
        "os.environ['_PNCS_COMPLETE'] = 'complete_zsh'\n"
        "os.environ['_TYPER_COMPLETE_ARGS'] = 'pncs run --set '\n"
    )
    assert imported([], first) & {*HEAVY} == set()


def test_the_first_round_waits_for_no_import_that_it_does_not_need(tmp_path: Path) -> None:
    arguments = ["run", "--engine", "in-process", "--workers", "1", "--output", str(tmp_path)]
    first = (
        "from pncs_flower.simulations.run import training\ntraining.train = lambda *_: sys.exit()\n"
    )
    seen = imported(arguments, first)
    assert seen & {*HEAVY} == {"torch", "flwr"}


def imported(arguments: list[str], first: str = "") -> set[str]:
    """Return what a command has imported when it ends, after other lines of code."""
    code = (
        "import sys\n"
        "from pncs_flower.simulations.cli import app\n"
        f"{first}"
        "try:\n"
        f"    app({arguments!r})\n"
        "except SystemExit:\n"
        "    print(*sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    return set(done.stdout.splitlines()[-1].split())


CRASHES = """
import atexit, os, sys
from pncs_flower.simulations.cli import run
atexit.register(os._exit, 11)  # as a library may that was interrupted
print("said", end="")
run.app = lambda: sys.exit(int(sys.argv[1]))
run.main()
"""


@pytest.mark.parametrize(("code", "seen"), [(130, 130), (143, 143), (1, 11)])
def test_a_command_that_was_stopped_ends_by_the_signal_though_a_library_crashes_at_the_end(
    code: int, seen: int
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CRASHES, str(code)], capture_output=True, timeout=60, check=False
    )
    assert done.returncode == seen
    if seen > 128:
        assert done.stdout == b"said"


def test_a_run_of_a_sweep_file_is_a_sweep(tmp_path: Path) -> None:
    file = tmp_path / "small.toml"
    file.write_text('title = "small"\nrules = ["uniform"]\nseeds = 1\n[settings]\nnum-rounds = 1\n')
    command = ["sweep", str(file), "--workers", "0", "--output", str(tmp_path / "out")]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert (tmp_path / "out" / "report.html").is_file()


def test_the_in_process_grid_has_a_short_name() -> None:
    from pncs_flower import simulations
    from pncs_flower.simulations.run.in_process import InProcessGrid

    assert simulations.InProcessGrid is InProcessGrid
    with pytest.raises(AttributeError, match="no attribute 'Grid'"):
        _ = simulations.Grid
