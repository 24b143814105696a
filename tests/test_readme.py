"""What the README shows is run as it stands there, and it is short and whole."""

import re
from pathlib import Path

import pytest
from apps import numpy_app
from flwr.serverapp.strategy import FedAvg

from pncs_flower.simulations.run.in_process import InProcessGrid
from pncs_flower.strategies.rules import STRATEGIES

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
DOCS = ROOT / "docs"


def block_with(text: str, page: Path = README) -> str:
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S)
    (block,) = [block for block in blocks if text in block]
    return block


def test_drop_in_example_runs_as_printed():
    client: dict = {}
    exec(block_with("client_app.py"), client)
    app = client["app"]
    # "Your @app.train() stays as it is": here it is that of the NumPy app of the tests.
    app.train()(lambda message, context: numpy_app.train(message, context))
    app.evaluate()(lambda message, context: numpy_app.evaluate(message, context))

    strategies = []
    server: dict = {"initial_arrays": numpy_app.initial_arrays()}
    exec(block_with("server_app.py"), server)
    original = server["PNCS"]
    server["PNCS"] = lambda *args, **kw: strategies.append(original(*args, **kw)) or strategies[-1]
    grid = InProcessGrid(app, num_clients=10)
    server["main"](grid, None)
    assert [len(record.delivered) for record in strategies[0].history] == [2] * 20


def test_drop_in_example_is_short():
    lines = [
        line
        for name in ("server_app.py", "client_app.py")
        for line in block_with(name).splitlines()
        if line.strip() and not line.startswith("#")
    ]
    assert len(lines) <= 12


def test_example_of_the_parts_runs(capsys):
    exec(block_with("least_aligned_subset", DOCS / "reference" / "method.md"), {})
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    chosen = [name for line in lines for name in re.findall(r"client-\d", line)]
    assert len(set(chosen)) == 6  # two rounds of rest
    assert all(line.endswith(" True") for line in lines)


@pytest.mark.parametrize("target", ["run", "test", "test-all", "docs-serve"])
def test_make_targets_of_the_readme_exist(target):
    assert f"make {target}" in README.read_text(encoding="utf-8")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert re.search(rf"^{target}:", makefile, re.M)


def test_readme_is_short():
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 120


def test_every_rule_has_its_line_of_advice():
    rows = re.findall(r"^\| `(\w+)` \| .+ \| .+ \|$", README.read_text(encoding="utf-8"), re.M)
    assert sorted(rows) == sorted(strategy.__name__ for strategy in STRATEGIES.values())


def test_what_each_rule_asks_for_is_told():
    """The other table of rules: those that it does not name ask for nothing."""
    _, _, page = (DOCS / "which-rule.md").read_text(encoding="utf-8").partition("What each asks")
    named = set(re.findall(r"^\| `(\w+)` \|", page, re.M))
    asking = {kind for kind in STRATEGIES.values() if kind(FedAvg()).rule.request is not None}
    assert named == {kind.__name__ for kind in asking}
