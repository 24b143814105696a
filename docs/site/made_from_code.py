"""Parts of pages that are made from the code: settings, the command's help, and public names.

``{settings}``, ``{commands}`` and ``{names} MODULE`` stand in the pages of docs/reference/.
"""

import importlib
import inspect
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import click
import typer
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.ext.autodoc.mock import mock
from sphinx.util.docutils import SphinxDirective

ROOT = Path(__file__).resolve().parent.parent.parent
APP = ROOT / "simulations" / "pyproject.toml"


def settings_table() -> list[str]:
    """Return the settings as a table in Markdown."""
    from pncs_flower.simulations.choices import settings_with_comments

    lines = ["| setting | default | meaning |", "| --- | --- | --- |"]
    for values, comment in settings_with_comments():
        names = "<br>".join(f"`{name}`" for name in values)
        defaults = "<br>".join(f"`{value}`" for value in values.values())
        lines.append(f"| {names} | {defaults} | {_cell(comment)} |")
    return lines


def _cell(text: str) -> str:
    """Return text for a cell of a table, with what is in quotes as code."""
    text = re.sub(r"(?<!\w)'([^']+)'(?!\w)|\"([^\"]+)\"", r"`\1\2`", text)
    return text.replace("|", "\\|").replace("<", "&lt;")


def commands() -> Iterator[tuple[str, click.Command]]:
    """Yield the commands of `pncs`, each with how it is called."""
    from pncs_flower.simulations.cli import app

    def walk(name: str, command: Any) -> Iterator[tuple[str, click.Command]]:
        if hasattr(command, "commands"):
            for key, each in command.commands.items():
                yield from walk(f"{name} {key}", each)
        else:
            yield name, command

    return walk("pncs", typer.main.get_command(app))


def command_help(name: str, command: click.Command) -> list[str]:
    """Return what a command does and takes, in Markdown."""
    context = click.Context(command, info_name=name)
    lines = [f"## `{name}`", "", *_plain(command.help or "").splitlines(), ""]
    usage = " ".join(command.collect_usage_pieces(context))
    lines += ["```text", f"{name} {usage}", "```", ""]
    rows = []
    for each in command.params:
        if isinstance(each, click.Option) and not each.hidden:
            # Apart, so that a narrow table has one below the other.
            kind = "" if each.is_flag else f" `{each.make_metavar(context)}`"
            written = f"`{', '.join([*each.opts, *each.secondary_opts])}`{kind}"
            rows.append(
                f"| {written.replace('|', chr(92) + '|')} | {_cell(_plain(each.help or ''))} |"
            )
    if rows:
        lines += ["| option | meaning |", "| --- | --- |", *rows, ""]
    if command.epilog:
        lines += [*_examples(_plain(command.epilog)), ""]
    return lines


def _plain(text: str) -> str:
    """Return help without rich's markup."""
    return re.sub(r"(?<!\\)\[/?[a-z]+\]", "", text).replace("\\[", "[").strip()


def _examples(text: str) -> list[str]:
    lines = [line for line in text.splitlines() if line]
    examples = [f"$ {line}" for line in lines if line.startswith("pncs ")]
    others = [line for line in lines if not line.startswith("pncs ") and line != "Examples"]
    return [*others, "", "```console", *examples, "```"] if examples else others


def names(
    module: str, only: str = "", wanted: Sequence[str] = (), missing: Sequence[str] = ()
) -> list[str]:
    """Return directives, in reStructuredText, for what a module exports.

    All of it, or the subclasses of one class of it, that one first, or the names wanted. Packages
    that are missing are stood in for.
    """
    with mock(missing):
        imported = importlib.import_module(module)
    found = {name: getattr(imported, name) for name in wanted or imported.__all__}
    if only:
        top = found[only]
        kinds = {k: v for k, v in found.items() if inspect.isclass(v) and issubclass(v, top)}
        found = {only: top, **kinds}
    lines = []
    for name, value in found.items():
        if inspect.isclass(value):
            lines += [f".. autoclass:: {module}.{name}", "   :members:", ""]
        elif inspect.isfunction(value):
            lines += [f".. autofunction:: {module}.{name}", ""]
        else:
            lines += [f".. autodata:: {module}.{name}", "   :no-value:", ""]
    return lines


class _Made(SphinxDirective):
    """A directive whose content is made, and then parsed as if it stood in the page."""

    has_content = True
    optional_arguments = 1

    def made(self) -> list[str]:
        raise NotImplementedError

    def run(self) -> list[nodes.Node]:
        return self.parse_text_to_nodes("\n".join(self.made()), allow_section_headings=True)


class _Settings(_Made):
    def made(self) -> list[str]:
        self.env.note_dependency(str(APP))
        return settings_table()


class _Commands(_Made):
    def made(self) -> list[str]:
        return [line for name, command in commands() for line in command_help(name, command)]


class _Names(_Made):
    option_spec: ClassVar = {"only": str}

    def made(self) -> list[str]:
        (module,), only = self.arguments, self.options.get("only", "")
        wanted = [name for name in self.content if name]
        missing = self.config.autodoc_mock_imports
        return ["```{eval-rst}", *names(module, only, wanted, missing), "```"]


def setup(app: Sphinx) -> dict[str, Any]:
    """Add the directives."""
    app.add_directive("settings", _Settings)
    app.add_directive("commands", _Commands)
    app.add_directive("names", _Names)
    return {"parallel_read_safe": True}
