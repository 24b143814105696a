"""The command line answers at once what needs no run, and takes a sweep where it takes a run."""

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import pncs_flower
from pncs_flower.simulations.cli import app
from pncs_flower.simulations.config import Config, default_run_config
from pncs_flower.simulations.run.settings import keep_settings

HEAVY = {
    "torch",
    "torchvision",
    "ray",
    "flwr",
    "matplotlib",
    "sklearn",
    "scipy",
    "pandas",
    "psutil",
}
SLOW = {*HEAVY, "numpy", "pydantic"}  # of which each takes longer than all that --help needs


def test_help_and_what_is_wrong_with_a_command_wait_for_no_import() -> None:
    """Imports, since times on a busy machine say little."""
    commands = [
        "",
        "--help",
        *(f"{name} --help" for name in ("run", "compare", "sweep", "report", "reproduce", "rules")),
        *("data --help", "data get --help", "data check --help", "bench --help"),
        *("runn", "run --round 3", "run --workers many", "run --set lr"),
        *("report absent", "reproduce table9", "sweep absent.toml", "bench nothing"),
    ]
    seen = imported(*(each.split() for each in commands))
    found = {each: modules & SLOW for each, modules in zip(commands, seen, strict=True)}
    assert not any(found.values()), found


def test_a_wrong_setting_waits_for_what_checks_settings_alone(tmp_path: Path) -> None:
    keep_settings(tmp_path, Config.from_run_config(default_run_config()), 4)
    commands = ["--set lr=abc", "--strategy pnsc", "--clients 1", "--set rule.q=2"]
    commands += ["--set learning-rate=0.1", f"--resume {tmp_path} --clients 5"]
    seen = imported(*(["run", *each.split()] for each in commands))
    assert [modules & SLOW for modules in seen] == [{"pydantic"}] * len(commands)


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "--resume", "absent"],
        ["compare", "pnsc"],
        ["compare", "pncs rule.q=2"],
        ["data", "list"],
    ],
)
def test_what_needs_no_run_waits_for_no_large_import(arguments: list[str]) -> None:
    assert imported(arguments)[0] & HEAVY == set()


def test_the_tab_key_waits_for_no_import() -> None:
    first = (
        "import functools, os\n"
        "app = functools.partial(app, prog_name='pncs')\n"
        "os.environ['_PNCS_COMPLETE'] = 'complete_zsh'\n"
        "os.environ['_TYPER_COMPLETE_ARGS'] = 'pncs run --set '\n"
    )
    assert imported([], first=first)[0] & SLOW == set()


def test_the_names_of_the_package_are_imported_when_they_are_asked_for() -> None:
    code = (
        "import sys, pncs_flower\n"
        "assert 'numpy' not in sys.modules and {*pncs_flower.__all__} <= {*dir(pncs_flower)}\n"
        "from pncs_flower import *\n"
        "print(*(globals()[name].__name__ for name in pncs_flower.__all__))\n"
        "import pncs_flower.similarity\n"
        "assert cosine is pncs_flower.cosine is pncs_flower.similarity.cosine\n"
        "pncs_flower.cosines\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.split() == pncs_flower.__all__
    assert "has no attribute 'cosines'" in done.stderr


def test_the_first_round_waits_for_no_import_that_it_does_not_need(tmp_path: Path) -> None:
    arguments = ["run", "--engine", "in-process", "--workers", "1", "--output", str(tmp_path)]
    first = (
        "from pncs_flower.simulations.run import training\ntraining.train = lambda *_: sys.exit()\n"
    )
    assert imported(arguments, first=first)[0] & HEAVY == {"torch", "flwr"}


def imported(*commands: list[str], first: str = "") -> list[set[str]]:
    """Return what has been imported when each command ends, after other lines of code."""
    code = (
        "import sys\n"
        "from pncs_flower.simulations.cli import app\n"
        f"{first}"
        f"for arguments in {commands!r}:\n"
        "    try:\n"
        "        app(arguments)\n"
        "    except SystemExit:\n"
        "        print('imported:', *sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    lines = [each for each in done.stdout.splitlines() if each.startswith("imported: ")]
    return [set(each.split()[1:]) for each in lines]


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


@pytest.mark.parametrize(
    ("own", "told"),
    [
        ("clients = 7\nshards = [3]", "uniform, seed 0: 7 clients x 3 shards-per-client"),
        ('settings.dataset = "cifar10"\nsettings.data-dir = "nowhere"', "CIFAR-10 is not in"),
    ],
)
def test_data_that_a_sweep_cannot_have_are_told_with_its_file(
    own: str, told: str, tmp_path: Path
) -> None:
    file = tmp_path / "small.toml"
    file.write_text(f'title = "small"\nrules = ["uniform"]\nseeds = 1\n{own}\n')
    command = ["sweep", str(file), "--workers", "0", "--output", str(tmp_path / "out")]
    assert f"\nError: {file}: {told}" in CliRunner().invoke(app, command).output


def test_the_in_process_grid_has_a_short_name() -> None:
    from pncs_flower import simulations
    from pncs_flower.simulations.run.in_process import InProcessGrid

    assert simulations.InProcessGrid is InProcessGrid
    with pytest.raises(AttributeError, match="no attribute 'Grid'"):
        _ = simulations.Grid
