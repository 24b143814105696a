"""The tab key completes commands, options, rules and settings; what is misspelt is found."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pncs_flower.simulations.choices import _ELSEWHERE
from pncs_flower.simulations.cli import app
from pncs_flower.simulations.cli.options import complete_setting
from pncs_flower.simulations.config import CHOICES, default_run_config


def completed(line: str) -> list[str]:
    """Return what fish is offered at the end of a line."""
    environment = {
        "_PNCS_COMPLETE": "complete_fish",
        "_TYPER_COMPLETE_ARGS": line,
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }
    done = CliRunner().invoke(app, [], prog_name="pncs", env=environment)
    assert done.exit_code == 0
    return [each.partition("\t")[0] for each in done.output.splitlines()]


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("pncs comp", ["compare"]),
        ("pncs data g", ["get"]),
        ("pncs compare pncs unif", ["uniform"]),
        ("pncs run --strategy unif", ["uniform"]),
        ("pncs run --num", ["--num-selected"]),
        ("pncs run --set part", ["partition=shards"]),
        ("pncs run --set partition=i", ["partition=iid"]),
        ("pncs compare --set checkp", ["checkpoint=true"]),
        ("pncs sweep x.toml --set rule.cand", ["rule.candidates="]),
        ("pncs data check cifar", ["cifar10", "cifar100"]),
        ("pncs reproduce per", ["per-layer"]),
        ("pncs rules gradient-m", ["gradient-memory"]),
        ("pncs bench simi", ["similarity"]),
    ],
)
def test_the_tab_key_completes(line: str, wanted: list[str]) -> None:
    assert completed(line) == wanted


def test_every_rule_and_every_setting_is_offered() -> None:
    assert completed("pncs compare ") == [*CHOICES["strategy"], "all"]
    offered = [each.partition("=")[0] for each in complete_setting("")]
    assert offered == [*default_run_config(), "rule."]


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_takes_the_script_that_pncs_prints(tmp_path: Path) -> None:
    command = tmp_path / "pncs"
    code = "from pncs_flower.simulations.cli import main\nmain()\n"
    command.write_text(f"#!{sys.executable}\n{code}")
    command.chmod(0o755)
    environment = {
        **os.environ,
        "HOME": str(tmp_path),
        "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
    }

    def said(*words: str, **more: str) -> str:
        done = subprocess.run(words, env=environment | more, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    script = said("pncs", _PNCS_COMPLETE="source_bash")
    assert script.lstrip().startswith("_pncs_completion() {")  # and nothing else is carried out
    script += (
        "\nCOMP_WORDS=(pncs compare --set dataset=dig) COMP_CWORD=3\n"
        '_pncs_completion pncs\nprintf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    assert said("bash", "-c", script).split() == ["dataset=digits"]


@pytest.mark.parametrize(
    ("words", "meant"), [("comprae", "compare"), ("data chekc", "check"), ("rulse", "rules")]
)
def test_a_misspelt_command_has_the_nearest_told_once(words: str, meant: str) -> None:
    done = CliRunner().invoke(app, words.split())
    assert done.exit_code == 2
    assert done.output.count(f"Did you mean '{meant}'?") == 1


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("run --lr 0.1", "Did you mean '--set lr=VALUE'?"),
        ("run --learning_rate 0.1", "Did you mean '--set lr=VALUE'?"),
        ("run --num-round 5", "Did you mean '--rounds'?"),
        ("compare --num-clients 5", "Did you mean '--clients'?"),
        ("compare --epochs 5", "Did you mean '--set local-epochs=VALUE'?"),
        ("compare --seed 5", "Did you mean '--seeds'?"),
        ("compare --strategy pncs", "Did you mean 'pncs compare RULE'?"),
        ("report --lr 5", "No such option '--lr'."),
        ("run --set learning-rate=0.1", "unknown setting 'learning-rate': did you mean 'lr'?"),
        ("run --set num-users=5", "num-users is no setting, but an option: --clients 5"),
        ("compare random", "there is no rule 'random': did you mean 'uniform'?"),
        ("compare pncs,uniform", "pncs,uniform: give rules apart, as pncs uniform"),
        ("rules PNCS", "there is no rule or combination 'PNCS': did you mean 'pncs'?"),
        ("rules all", "in pncs run, --strategy uniform"),
        (f"run --output {__file__}", "which is a file: give another --output"),
        ("foo", "There are run, compare, sweep, report, reproduce, rules, bench, data."),
    ],
)
def test_what_others_call_so_is_told_by_its_name_here(words: str, told: str) -> None:
    done = CliRunner().invoke(app, words.split(), env={"COLUMNS": "200"})
    assert done.exit_code > 0
    assert told in done.output


def test_names_of_elsewhere_are_none_of_ours() -> None:
    ours = {*default_run_config(), *CHOICES["strategy"], "clients"}
    for here, names in _ELSEWHERE.items():
        assert here in ours
        assert not {*names} & ours


def test_an_empty_path_is_not_the_folder_where_one_is() -> None:
    for words in (
        *("run --output", "run --resume", "compare --output", "sweep x.toml --output", "report"),
        *("reproduce rest --output", "reproduce rest --weights", "data get cifar10 --data-dir"),
    ):
        done = CliRunner().invoke(app, [*words.split(), ""], env={"COLUMNS": "200"})
        assert done.exit_code == 2
        assert "it is empty: name a folder or file" in done.output


def test_alone_it_says_what_one_can_do_next() -> None:
    done = CliRunner().invoke(app, [])
    assert done.exit_code == 0
    lines = done.output.splitlines()
    assert len(lines) < 10
    assert all(len(line) < 80 for line in lines)
    assert "pncs compare" in done.output
    shown = CliRunner().invoke(app, ["data"])
    assert shown.exit_code == 0
    assert shown.output.startswith("digits ")
