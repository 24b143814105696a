"""What people type, and what their editors, terminals and shells make of it."""

import codecs
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from flwr.serverapp.strategy import FedAvg
from typer.testing import CliRunner

from pncs_flower.simulations.cli import app
from pncs_flower.simulations.cli.console import parse_setting
from pncs_flower.simulations.config import Config, default_run_config
from pncs_flower.simulations.sweep.file import read_sweep
from pncs_flower.simulations.sweep.sweep import Sweep
from pncs_flower.simulations.toml_file import read_toml
from pncs_flower.strategies import RoundRobin

SWEEP = 'title = "Zürich"\nrules = ["uniform"]\nclients = 4\nshards = [5]\nseeds = 1\n'
WIDE = "sweep.toml is UTF-16, UTF-32 or no text at all, and TOML is UTF-8: save it as UTF-8"
PNCS = [sys.executable, "-c", "from pncs_flower.simulations.cli import main; main()"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("lr=.05", 0.05),
        ("lr=5.", 5.0),
        ("lr=+.5e-1", 0.05),
        ("lr=1e-3", 0.001),
        ("lr=05", 5),
        ("lr = 0.05", 0.05),
        ("num-rounds=20", 20),
        ("num-rounds=1_000", 1000),
        ("tensorboard=True", True),
        ("tensorboard=true", True),
        ("tensorboard=FALSE", False),
        ("partition=iid", "iid"),
        ('trainable-layers="fc1,fc2"', "fc1,fc2"),
        ("output-dir=2024", "2024"),
        ("output-dir=1.", "1."),
        ("trainable-layers=true", "true"),
        ("weights=a=b", "a=b"),
    ],
)
def test_value_is_read_as_people_write_it(text: str, value: object) -> None:
    key, parsed = parse_setting(text)
    assert (parsed, type(parsed)) == (value, type(value))
    Config.from_run_config(default_run_config() | {key: parsed})


@pytest.mark.parametrize("text", ["lr=a.5", "lr=.", "lr=0x", "lr=1,5", "tensorboard=yes"])
def test_what_is_no_value_of_its_kind_is_refused(text: str) -> None:
    done = CliRunner().invoke(app, ["run", "--set", text])
    assert done.exit_code == 1
    assert "must be" in done.output


def test_file_may_have_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "sweep.toml"
    path.write_bytes(codecs.BOM_UTF8 + SWEEP.encode())
    assert read_sweep(path).title == "Zürich"
    (tmp_path / "config.toml").write_bytes(codecs.BOM_UTF8 + b'strategy = "pncs"\n')
    assert read_toml(tmp_path / "config.toml") == {"strategy": "pncs"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (SWEEP.encode("utf-16"), WIDE),
        (codecs.BOM_UTF16_BE + SWEEP.encode("utf-16-be"), WIDE),
        (SWEEP.encode("utf-16-le"), WIDE),
        (SWEEP.encode("utf-32"), WIDE),
        (
            SWEEP.encode("latin-1"),
            r"not UTF-8, as TOML must be \(byte 0xfc in line 1",
        ),
    ],
)
def test_file_in_another_encoding_is_called_so(
    content: bytes, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "sweep.toml"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_sweep(path)


@pytest.mark.parametrize("seed", ["-1", str(2**63), str(2**64), str(10**400)])
@pytest.mark.parametrize("engine", ["ray", "in-process"])
def test_seed_out_of_range_is_told_at_once_with_any_engine(
    seed: str, engine: str, tmp_path: Path
) -> None:
    command = ["run", "--engine", engine, "--seed", seed, "--output", str(tmp_path / "run")]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 1
    assert re.search(rf"Error: seed = {seed[:80]}(\.\.\.)? must be ", done.output)
    assert not (tmp_path / "run").exists()


def test_setting_out_of_range_is_told_by_a_sweep_before_it_runs() -> None:
    with pytest.raises(ValueError, match=r"batch-size = \d+ must be below 2\*\*63"):
        Sweep("a sweep", ("uniform",), settings={"batch-size": 2**63})


@pytest.mark.parametrize("seed", [2**63, 2**64, -(2**63) - 1])
def test_seed_that_a_message_cannot_hold_is_refused_by_a_strategy(seed: int) -> None:
    with pytest.raises(ValueError, match=r"seed is -?\d+, but must be at least -2\*\*63 and below"):
        RoundRobin(FedAvg(), seed=seed)


@pytest.mark.parametrize("seed", [2**63 - 1, -(2**63), -1])
def test_every_seed_that_a_message_can_hold_is_accepted(seed: int) -> None:
    assert RoundRobin(FedAvg(), seed=seed).options.seed == seed


def pncs(*arguments: str, encoding: str) -> subprocess.CompletedProcess[bytes]:
    environment = {**os.environ, "PYTHONIOENCODING": encoding, "COLUMNS": "200"}
    return subprocess.run(
        [*PNCS, *arguments], env=environment, capture_output=True, timeout=120, check=False
    )


@pytest.mark.minutes
def test_folder_that_the_terminal_cannot_show_is_no_obstacle(tmp_path: Path) -> None:
    folder = tmp_path / "☃"
    command = ["run", "--engine", "in-process", "--workers", "1", "--rounds", "1"]
    done = pncs(*command, "--output", str(folder), encoding="ascii")
    assert done.returncode == 0, done.stderr
    assert b"\\u2603" in done.stdout
    assert (folder / "summary.json").is_file()


@pytest.mark.minutes
def test_title_that_the_terminal_cannot_show_is_no_obstacle(tmp_path: Path) -> None:
    path = tmp_path / "sweep.toml"
    path.write_text(SWEEP + "[settings]\nnum-rounds = 1\n", encoding="utf-8")
    command = ["sweep", str(path), "--workers", "0", "--output", str(tmp_path / "out")]
    done = pncs(*command, encoding="ascii")
    assert done.returncode == 0, done.stderr
    assert b"Z\\xfcrich" in done.stdout


@pytest.mark.parametrize(("encoding", "shown"), [("ascii", b"\\u2603"), ("utf-8", "☃".encode())])
def test_error_that_the_terminal_cannot_show_is_told(
    encoding: str, shown: bytes, tmp_path: Path
) -> None:
    done = pncs("sweep", str(tmp_path / "☃.toml"), encoding=encoding)
    assert done.returncode == 1
    assert b"Error: there is no file" in done.stderr
    assert shown in done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="where a path is bytes")
def test_folder_that_no_file_of_settings_can_hold_is_told_before_it_is_made(
    tmp_path: Path,
) -> None:
    name = os.fsdecode(os.fsencode(tmp_path / "run") + b"\xff")
    done = pncs("run", "--engine", "in-process", "--output", name, encoding="utf-8")
    assert done.returncode == 1
    assert b"output-dir = " in done.stderr
    assert b"must be text that UTF-8 has" in done.stderr
    assert not list(tmp_path.iterdir())
