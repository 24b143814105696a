"""The command that was given, for a report that says how to run it again."""

import shlex

import click
from click.core import ParameterSource

_NO_RESULT = {"output", "workers"}
"""Options that say where something is written or computes."""


def given_command(**instead: str) -> str:
    """Return the command that is being carried out, with other values for some parameters."""
    context = click.get_current_context()
    words = ["pncs", str(context.info_name)]
    for parameter in context.command.params:
        name = str(parameter.name)
        given = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if not given or name in _NO_RESULT:
            continue
        value = instead.get(name, context.params[name])
        option = [] if isinstance(parameter, click.Argument) else [parameter.opts[0]]
        if isinstance(value, bool):
            words += option if value else parameter.secondary_opts[:1]
            continue
        for each in value if isinstance(value, list | tuple) else [value]:
            words += [*option, str(each)]
    return shlex.join(words)
