"""What somebody else has in a folder is not written over."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from pncs_flower.simulations.cli import app
from pncs_flower.simulations.folders import SETTINGS, SWEEP, WRITTEN, refuse_to_write_over

SMALL = ["--clients=4", "--rounds=1", "--workers=1", "--set", "model=linear", "--output"]
RUN = ["run", "--engine", "in-process", "--set", "devices=phones", *SMALL]
COMPARE = ["compare", "uniform", "--seeds", "1", *SMALL]


@pytest.mark.parametrize("own", WRITTEN)
def test_a_file_of_something_else_is_kept_and_named(own: str, tmp_path: Path) -> None:
    for name in (*WRITTEN[own], "lock"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / name).touch()
        refuse_to_write_over(folder, own)  # nothing would be lost
        (folder / name).write_text("mine")
        with pytest.raises(FileExistsError, match=rf"has a {name} of something else.* --output"):
            refuse_to_write_over(folder, own)
        (folder / own).touch()
        refuse_to_write_over(folder, own)  # it is ours


@pytest.mark.parametrize(("own", "command"), [(SETTINGS, RUN), (SWEEP, COMPARE)])
def test_all_that_a_command_writes_over_is_known(
    own: str, command: list[str], tmp_path: Path
) -> None:
    done = CliRunner().invoke(app, [*command, str(tmp_path / "own")])
    assert done.exit_code == 0, done.output
    written = {path.name for path in (tmp_path / "own").iterdir() if path.is_file()}
    # The log is added to, and a file of rounds has a word of its own.
    assert written - {own, "lock", "flwr.log", "rounds.jsonl"} <= {*WRITTEN[own]}
    theirs = tmp_path / "theirs" / "rounds.png"
    theirs.parent.mkdir()
    theirs.write_text("mine")
    done = CliRunner().invoke(app, [*command, str(theirs.parent)])
    assert done.exit_code == 1
    assert "has a rounds.png of something else, which would be written over" in done.output
    assert [path.name for path in theirs.parent.iterdir()] == ["rounds.png"]
    assert theirs.read_text() == "mine"
