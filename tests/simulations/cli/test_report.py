"""`pncs report` of a folder that is not as a command left it: the file is named, and what to do."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pncs_flower.simulations.cli import app

SUMMARY = json.dumps({"rounds": 1})


@pytest.mark.parametrize(
    ("files", "told"),
    [
        (
            {"summary.json": SUMMARY, "config.toml": "", "rounds.jsonl": b"\xff\x00\n"},
            "rounds.jsonl is no round of a run: remove it",
        ),
        ({"summary.json": SUMMARY}, "has no config.toml, which its run wrote: put it back"),
        ({"summary.json": SUMMARY, "config.toml": ""}, "has no round in rounds.jsonl"),
        ({"summary.json": SUMMARY, "rounds.jsonl": "x\n"}, "has no config.toml"),
        (
            {"summary.json": SUMMARY, "config.toml": "", "rounds.jsonl": "x\n"},
            "rounds.jsonl is no round of a run: remove it",
        ),
        ({"board.json": "[]"}, "board.json is damaged: give the command again that made the board"),
        ({"sweep.json": ""}, "sweep.json is damaged: give the command again that ran the sweep"),
        ({"notes.txt": ""}, "has no sweep.json, board.json or summary.json: give the folder of"),
    ],
)
def test_a_damaged_folder_is_named(
    files: dict[str, str | bytes], told: str, tmp_path: Path
) -> None:
    for name, content in files.items():
        (tmp_path / name).write_bytes(content.encode() if isinstance(content, str) else content)
    done = CliRunner().invoke(app, ["report", str(tmp_path)])
    assert done.exit_code == 1
    assert told in done.output
    assert "--traceback" not in done.output


def test_a_folder_that_is_not_there_is_told_though_others_may_not_be_looked_into(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "private").mkdir()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "sweep.json").touch()
    look = Path.is_file

    def refuse(path: Path) -> bool:  # as for anybody but root, who may run tests
        if path.parent.name == "private":
            raise PermissionError(13, "Permission denied", str(path))
        return look(path)

    monkeypatch.setattr(Path, "is_file", refuse)
    done = CliRunner().invoke(app, ["report", str(tmp_path / "mien")], env={"COLUMNS": "1000"})
    assert (
        f"there is no folder {tmp_path / 'mien'}; did you mean {tmp_path / 'mine'}?" in done.output
    )


@pytest.mark.parametrize("summary", ["", "[]", "{}"])
def test_a_damaged_summary_says_how_it_is_written_again(summary: str, tmp_path: Path) -> None:
    row = {"round": 1, "elapsed": 1.0, "notes": [], "accuracy": 0.5}
    (tmp_path / "rounds.jsonl").write_text(f"{json.dumps(row)}\n")
    (tmp_path / "config.toml").touch()
    (tmp_path / "summary.json").write_text(summary)
    done = CliRunner().invoke(app, ["report", str(tmp_path)])
    assert f"summary.json is damaged: give pncs run --resume {tmp_path}, which" in done.output


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--set", "lrr=1"], "unknown setting 'lrr': did you mean 'lr'?"),
        (["--set", "shards-per-client=3"], "shards-per-client = 3 is the study's own: leave it"),
        (["--seeds", "1"], "seeds = 1 must be at least 2"),
    ],
)
def test_a_study_that_is_refused_leaves_nothing_behind(
    arguments: list[str], told: str, tmp_path: Path
) -> None:
    command = ["reproduce", "table1", "--quick", "--output", str(tmp_path / "out"), *arguments]
    done = CliRunner().invoke(app, command)
    assert done.output.startswith("Error: ")
    assert told in done.output
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "command",
    [
        "run --engine in-process --output",
        "reproduce table1 --quick --output",
        "reproduce leaderboard --quick --only setting=one-label --only rules=uniform --output",
    ],
)
def test_a_folder_that_cannot_be_written_to_is_told_with_the_reason(command: str) -> None:
    done = CliRunner().invoke(app, [*command.split(), "/proc/here"])
    assert done.exit_code == 1
    assert done.output.startswith("Error: ")
    assert "No such file or directory. Give " in done.output
