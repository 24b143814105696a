"""What the README shows is run as it stands there."""

import re
from pathlib import Path

import pytest
from apps import numpy_app

from pncs_flower.simulations.run.in_process import InProcessGrid

README = Path(__file__).resolve().parent.parent / "README.md"


def python_blocks() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", README.read_text(encoding="utf-8"), re.M | re.S)


def block_with(text: str) -> str:
    (block,) = [block for block in python_blocks() if text in block]
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
    exec(block_with("least_aligned_subset"), {})
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    chosen = [name for line in lines for name in re.findall(r"client-\d", line)]
    assert len(set(chosen)) == 6  # two rounds of rest
    assert all(line.endswith(" True") for line in lines)


@pytest.mark.parametrize("target", ["run", "test"])
def test_make_targets_of_the_readme_exist(target):
    makefile = (README.parent / "Makefile").read_text(encoding="utf-8")
    assert re.search(rf"^{target}:", makefile, re.M)
