"""Arrows point one way, and every module has one name."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("pncs_flower", "strategies", "clients", "simulations")


def imported(path: Path) -> Iterator[str]:
    """Yield the absolute names of the modules that a file imports, wherever in it."""
    package = path.relative_to(ROOT).parent.parts
    if package[0] != "pncs_flower":
        package = ("pncs_flower", *package)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(filter(None, (base, node.module)))
            yield module
            yield from (f"{module}.{name.name}" for name in node.names)


def offences(folder: str, *banned: str) -> list[str]:
    return [
        f"{path.relative_to(ROOT)} imports {module}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for module in imported(path)
        if any(module == name or module.startswith(name + ".") for name in banned)
    ]


@pytest.mark.parametrize(
    ("folder", "banned"),
    [
        ("pncs_flower", ("pncs_flower.strategies", "pncs_flower.clients")),
        ("pncs_flower", ("pncs_flower.simulations", "ray", "torchvision", "matplotlib")),
        ("strategies", ("pncs_flower.clients", "pncs_flower.simulations", "torch", "ray")),
        ("clients", ("pncs_flower.strategies", "pncs_flower.simulations")),
    ],
)
def test_arrows_point_one_way(folder: str, banned: tuple[str, ...]) -> None:
    assert offences(folder, *banned) == []


def test_the_core_needs_flower_for_messages_alone() -> None:
    found = offences("pncs_flower", "flwr")
    assert {Path(each.partition(" ")[0]).parts[1] for each in found} == {"messages"}


@pytest.mark.parametrize("folder", [*FOLDERS, "tests", "benchmarks"])
def test_no_module_goes_by_a_second_name(folder: str) -> None:
    # From the repository's root `import strategies` works as well, and makes every class twice.
    assert offences(folder, "strategies", "clients", "simulations") == []


def test_an_offence_would_be_seen() -> None:
    assert (
        "simulations/run/strategy.py imports pncs_flower.strategies.SelectionStrategy"
        in offences("simulations", "pncs_flower.strategies")
    )
