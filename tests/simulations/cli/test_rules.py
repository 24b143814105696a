"""`pncs rules`: what can be set is what the rules' dataclasses have."""

import re
from dataclasses import fields

import pytest
from typer.testing import CliRunner

from pncs_flower.simulations.cli import app
from pncs_flower.strategies.combinations import COMBINATIONS
from pncs_flower.strategies.rule import parameters
from pncs_flower.strategies.rules import STRATEGIES


def said(*command: str) -> str:
    done = CliRunner().invoke(app, ["rules", *command])
    assert done.exit_code == 0, done.output
    return done.output


def test_all_rules_are_listed() -> None:
    text = said()
    for name in STRATEGIES:
        assert re.search(rf"^ {name} ", text, re.MULTILINE)


def test_all_combinations_are_listed_and_what_each_takes_is_shown() -> None:
    text = said()
    for name, kind in COMBINATIONS.items():
        assert re.search(rf"^.*\b{name}\b", text.partition("combine=")[2], re.MULTILINE)
        shown = said(name).partition("--set combine=")[2]
        assert shown.startswith(name)
        assert all(each.name in shown for each in fields(kind) if each.init)


@pytest.mark.parametrize("name", sorted(STRATEGIES))
def test_a_rules_parameters_are_shown(name: str) -> None:
    shown = re.findall(r"rule\.(\w+)", said(name))
    assert shown == [key for key in parameters(STRATEGIES[name].rule_type) if key != "num_selected"]


def test_a_rule_of_ones_own_is_shown_by_its_path() -> None:
    text = said("pncs_flower.strategies.rules.oort:OortRule")
    assert "rule.pacer_step" in text
    assert "float" in text


def test_what_is_no_rule_is_refused() -> None:
    done = CliRunner().invoke(app, ["rules", "pnsc"])
    assert done.exit_code == 1
    assert "did you mean 'pncs'" in done.output
