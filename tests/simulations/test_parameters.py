"""What a rule's file declares is what the rule takes."""

from pncs_flower.simulations.parameters import declared_parameters
from pncs_flower.strategies.rule import parameters
from pncs_flower.strategies.rules import STRATEGIES


def test_parameters_that_are_read_from_a_file_are_those_of_its_rule() -> None:
    for name, kind in STRATEGIES.items():
        taken = [key for key in parameters(kind.rule_type) if key != "num_selected"]
        assert list(declared_parameters(name)) == taken
