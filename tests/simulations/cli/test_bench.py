"""`pncs bench` runs the scripts of the source tree, and says so where there is none."""

import importlib
import re

from typer.testing import CliRunner

from pncs_flower.simulations.cli import app

MODULE = importlib.import_module("pncs_flower.simulations.cli.bench")


def refused(*names: str) -> str:
    done = CliRunner().invoke(app, ["bench", *names])
    assert done.exit_code == 1
    return " ".join(done.output.split())


def test_unknown_benchmark_lists_those_that_exist():
    assert re.search(r"'frobnicate'.*similarity, sketch", refused("frobnicate"))


def test_without_a_source_tree_it_says_where_to_get_one(monkeypatch, tmp_path):
    monkeypatch.setattr(MODULE, "FOLDER", tmp_path)
    assert "clone it" in refused()


def test_all_are_run_and_the_failed_named(monkeypatch, tmp_path):
    monkeypatch.setattr(MODULE, "FOLDER", tmp_path)
    monkeypatch.setattr(MODULE, "BENCHMARKS", ["bad", "good"])
    (tmp_path / "measure.py").touch()
    (tmp_path / "bad.py").write_text("raise SystemExit(3)")
    (tmp_path / "good.py").write_text("print('a table')")
    assert re.search("== bad == == good == a table .*failed: bad", refused("bad", "good"))
