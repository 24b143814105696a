"""A run goes on with the settings, data and clients that it was started with, or not at all."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from images import write_images
from typer.testing import CliRunner, Result

from pncs_flower.files import PARTIAL
from pncs_flower.simulations.cli import app
from pncs_flower.simulations.config import CHOICES, Config, default_run_config
from pncs_flower.simulations.folders import SETTINGS
from pncs_flower.simulations.report import of_run
from pncs_flower.simulations.run.folder import open_run, output_path
from pncs_flower.simulations.run.settings import (
    CHANGEABLE,
    keep_settings,
    read_settings,
    refuse_other_settings,
)
from pncs_flower.strategies.resume import settings as resume_settings

RUN = ["run", "--engine", "in-process"]
NEW = ["--clients", "6", "--rounds", "2", "--set", "model=linear", "--set", "lr=0.3"]


def config(**given: Any) -> Config:
    own = {key.replace("_", "-"): value for key, value in given.items()}
    return Config.from_run_config(default_run_config() | {"model": "linear"} | own)


def pncs(*arguments: str) -> Result:
    return CliRunner().invoke(app, [*RUN, *arguments], env={"COLUMNS": "1000"})


def another(key: str, value: Any) -> Any:
    """Return a value that the setting may have, other than its own."""
    if key in CHOICES:
        return next(each for each in CHOICES[key] if each != value)
    if key == "rule":
        return "p = 2"
    if key == "devices":
        return "uniform"
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, float):
        return value / 2 + 0.1
    return f"{value}x"


@pytest.mark.parametrize("key", [key for key in default_run_config() if key not in CHANGEABLE])
def test_setting_that_decides_the_result_is_refused_with_both_values(
    key: str, tmp_path: Path
) -> None:
    settings = config()
    keep_settings(tmp_path, settings)
    before = settings.to_run_config()[key]
    given = Config.from_run_config(settings.to_run_config() | {key: another(key, before)})
    after = given.to_run_config()[key]
    assert after != before
    with pytest.raises(ValueError, match="cannot go on") as error:
        keep_settings(tmp_path, given)
    assert f"{key} is {after!r}, but it was started with {before!r}" in str(error.value)
    with pytest.raises(ValueError, match="cannot go on"), open_run(tmp_path, given):
        pass
    with open_run(tmp_path, settings):  # a refusal holds no lock
        pass


@pytest.mark.parametrize("key", CHANGEABLE)
def test_setting_that_says_where_or_how_long_may_change(key: str, tmp_path: Path) -> None:
    settings = config()
    keep_settings(tmp_path, settings)
    before = settings.to_run_config()[key]
    keep_settings(
        tmp_path,
        Config.from_run_config(settings.to_run_config() | {key: another(key, before)}),
    )


def test_data_of_other_content_is_refused_and_of_the_same_elsewhere_is_not(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("first", "moved", "changed")]
    for folder in folders:
        write_images(folder)
    pictures = [folders[2] / "train" / str(label) / "0.png" for label in (0, 1)]
    pictures[0].write_bytes(pictures[1].read_bytes())
    first, moved, changed = (config(dataset="cifar10", data_dir=str(folder)) for folder in folders)
    run = tmp_path / "run"
    run.mkdir()
    keep_settings(run, first)
    keep_settings(run, moved)
    with pytest.raises(ValueError, match=r"data-dir is '.*changed'.* contents were others"):
        keep_settings(run, changed)


def test_file_of_settings_is_written_once_and_left_alone(tmp_path: Path) -> None:
    keep_settings(tmp_path, config(), 6)
    before = (tmp_path / SETTINGS).read_bytes()
    keep_settings(tmp_path, config(num_rounds=77, resume=True), 6)
    with open_run(tmp_path, config(num_rounds=77)):
        pass
    assert (tmp_path / SETTINGS).read_bytes() == before
    assert read_settings(tmp_path)[1]["clients"] == 6
    assert not list(tmp_path.glob(f"*{PARTIAL}"))


@pytest.mark.parametrize("lost", ["lr", "partition", "[run]", "release", "examples", "check"])
def test_settings_that_lack_a_line_are_refused_and_the_line_is_named(
    lost: str, tmp_path: Path
) -> None:
    keep_settings(tmp_path, config(), 6)
    file = tmp_path / SETTINGS
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    file.write_text("".join(line for line in lines if not line.startswith(lost)))
    with pytest.raises(ValueError, match="is cut off, was changed") as error:
        read_settings(tmp_path)
    assert lost.strip("[]") in str(error.value)


@pytest.mark.parametrize("change", [("lr = 0.1", "lr = 0.2"), ("clients = 6", "clients = 7")])
def test_settings_changed_by_hand_are_refused(change: tuple[str, str], tmp_path: Path) -> None:
    keep_settings(tmp_path, config(lr=0.1), 6)
    file = tmp_path / SETTINGS
    before = file.read_text(encoding="utf-8")
    assert change[0] in before
    file.write_text(before.replace(*change), encoding="utf-8")
    with pytest.raises(ValueError, match="its check does not match"):
        read_settings(tmp_path)


def test_run_of_a_release_that_knew_fewer_settings_goes_on_with_their_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Config.to_run_config

    def fewer(self: Config) -> Any:
        return {key: value for key, value in own(self).items() if key != "precision"}

    with monkeypatch.context() as patch:
        patch.setattr(Config, "to_run_config", fewer)
        patch.setattr(resume_settings, "installed_version", lambda package: "0.0.1")
        # Made before: a setting is checked when a Config is made.
        keep_settings(tmp_path, config())
    assert read_settings(tmp_path)[1]["release"] == "0.0.1"
    refuse_other_settings(tmp_path, config())
    with pytest.raises(ValueError, match="precision is 'bfloat16', but it was started with 'float"):
        refuse_other_settings(tmp_path, replace(config(), precision="bfloat16"))


def test_run_that_did_nothing_yet_is_begun_again_and_no_other_in_its_folder(tmp_path: Path) -> None:
    same, other = config(output_dir=str(tmp_path)), config(output_dir=str(tmp_path), lr=0.7)
    keep_settings(output_path(same), same, 6)
    assert output_path(same) == tmp_path.resolve()
    with pytest.raises(FileExistsError, match="holds a run already"):
        output_path(other)
    (tmp_path / "swept").mkdir()
    (tmp_path / "swept" / "sweep.json").touch()
    with pytest.raises(FileExistsError, match="holds the runs of a sweep already: give another --"):
        output_path(config(output_dir=str(tmp_path / "swept")))
    assert [each.name for each in (tmp_path / "swept").iterdir()] == ["sweep.json"]


def test_command_refuses_to_go_on_with_what_would_change_the_result(tmp_path: Path) -> None:
    folder = str(tmp_path / "run")
    assert pncs(*NEW, "--output", folder).exit_code == 0
    for arguments, message in (
        (["--set", "lr=0.5"], "lr is 0.5, but it was started with 0.3"),
        (["--seed", "4"], "seed is 4, but it was started with 0"),
        (
            ["--set", "checkpoint=false"],
            "goes on from its checkpoint, and is saved again: leave checkpoint",
        ),
        (["--clients", "7"], "has 6: leave --clients out"),
        (["--output", "elsewhere"], "leave --output out"),
    ):
        ended = pncs("--resume", folder, *arguments)
        assert ended.exit_code == 1
        assert message in ended.output
    # What it had, or what may change, is taken.
    ended = pncs("--resume", folder, "--set", "lr=0.3", "--device", "cpu", "--rounds", "3")
    assert ended.exit_code == 0, ended.output


def test_number_of_clients_and_engine_are_known_before_the_first_round_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = str(tmp_path / "run")

    def stop(row: Any, num_rounds: int) -> str:
        raise SystemExit(1)

    def resume(*arguments: str) -> Result:
        command = ["run", "--resume", folder, *arguments]
        return CliRunner().invoke(app, command, env={"COLUMNS": "1000"})

    with monkeypatch.context() as patch:
        patch.setattr(of_run, "round_line", stop)
        begun = pncs(*NEW, "--workers", "2", "--output", folder)
        assert f"To go on with it: pncs run --resume {folder}\n" in begun.output
        again = resume("--workers", "1")
        assert "6 clients, one after the other" in again.output
        assert f"pncs run --resume {folder} --rounds 2 --workers 1\n" in again.output
    told = "Error: --gpus-per-client is for --engine ray, and the engine is in-process: leave it"
    assert told in resume("--gpus-per-client", "0.5").output
    ended = resume()
    assert ended.exit_code == 0, ended.output
    assert "6 clients, in 2 worker processes" in ended.output
