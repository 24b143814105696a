"""A rule of the library is one file and one line, from which its names follow."""

from pncs_flower import strategies
from pncs_flower.simulations.config import CHOICES
from pncs_flower.strategies import rules


def test_each_file_of_the_folder_is_a_setting_and_has_its_line():
    assert set(CHOICES["strategy"]) == set(rules.STRATEGIES)


def test_each_strategy_and_its_rule_are_exported_under_their_own_names():
    for kind in rules.STRATEGIES.values():
        assert kind.__name__ in strategies.__all__
        assert getattr(strategies, kind.__name__) is kind
        assert getattr(rules, kind.rule_type.__name__) is kind.rule_type


def test_none_of_the_names_that_users_import_has_gone():
    built_in = {"PNCS", "ActiveFL", "DivFL", "FedCor", "GradientMemory", "GradientNorm", "Oort"}
    built_in |= {"PowerOfChoice", "RoundRobin", "UniformSelection"}
    assert built_in <= {kind.__name__ for kind in rules.STRATEGIES.values()}
