"""`pncs bench` runs the scripts of the source tree, and says so where there is none."""

import pytest

from pncs_flower.simulations.cli import bench


def test_unknown_benchmark_lists_those_that_exist():
    with pytest.raises(ValueError, match=r"'speed'.*similarity, sketch"):
        bench.run_benchmarks(["speed"])


def test_without_a_source_tree_it_says_where_to_get_one(monkeypatch, tmp_path):
    monkeypatch.setattr(bench, "FOLDER", tmp_path)
    with pytest.raises(FileNotFoundError, match="clone it"):
        bench.run_benchmarks([])


def test_all_are_run_and_the_failed_named(monkeypatch, tmp_path, capfd):
    monkeypatch.setattr(bench, "FOLDER", tmp_path)
    (tmp_path / "measure.py").touch()
    (tmp_path / "bad.py").write_text("raise SystemExit(3)")
    (tmp_path / "good.py").write_text("print('a table')")
    with pytest.raises(RuntimeError, match="failed: bad"):
        bench.run_benchmarks(["bad", "good"])
    assert "a table" in capfd.readouterr().out
