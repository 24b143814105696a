"""The command of a sweep, as its page says it."""

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from pncs_flower.simulations.cli import app


def test_a_command_is_said_as_it_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """But for what changes no result; it leads to the same sweep again."""
    told: list[tuple[str, str]] = []

    def noted(*_: object, command: str, file: str, **__: object) -> None:
        told.append((command, file))
        raise typer.Exit(0)

    monkeypatch.setattr("pncs_flower.simulations.sweep.run.run_sweep", noted)
    path = tmp_path / "a sweep.toml"
    text = 'title = "<é>"\nrules = ["pncs", "uniform"]\nshards = [1, 2]\n'
    path.write_text(text, encoding="utf-8")
    own = ["--quick", "--seeds", "3", "--only", "shards=1", "--set", "lr=0.3"]
    own += ["--set", "num-rounds=2"]
    elsewhere = ["--output", str(tmp_path), "--workers", "0"]
    CliRunner().invoke(app, ["sweep", str(path), *own, *elsewhere])
    words = f"'{path}' --seeds 3 --quick --only shards=1 --set lr=0.3 --set num-rounds=2"
    assert told == [(f"pncs sweep {words}", text)]
    CliRunner().invoke(app, ["reproduce", "table2", "--quick", "--data", "digits", *elsewhere])
    assert told[1] == ("pncs reproduce table2 --quick --data digits", "")
