"""The guide to a rule of one's own is run as it stands there."""

import importlib
import re
import sys
from pathlib import Path

import pytest
from flwr.serverapp.strategy import FedAvg

GUIDE = Path(__file__).resolve().parent.parent / "docs" / "new-rule.md"


def block(name: str) -> str:
    pattern = rf"^```python\n# --- {re.escape(name)} ---\n(.*?)^```"
    (text,) = re.findall(pattern, GUIDE.read_text(encoding="utf-8"), re.M | re.S)
    return text


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Write the guide's rule to a folder that Python imports from."""
    (tmp_path / "farthest.py").write_text(block("farthest.py"), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    yield tmp_path
    sys.modules.pop("farthest", None)


def test_rule_is_one_file_of_under_60_lines():
    assert len(block("farthest.py").splitlines()) < 60


def test_test_of_the_guide_passes(folder):
    namespace: dict = {}
    exec(block("test_farthest.py"), namespace)
    namespace["test_farthest_from_the_mean_is_chosen_until_it_had_its_turns"]()


def test_rule_is_wrapped_as_shown(folder):
    namespace: dict = {}
    exec(block("server.py").replace("FedAvg()", "base"), {"base": FedAvg()}, namespace)
    assert str(namespace["strategy"].rule) == "FarthestRule(num_selected=2, sketch='count:64')"


def test_rule_runs_in_the_app_by_its_import_path(folder, tmp_path):
    from pncs_flower.simulations.client_app import app as client_app
    from pncs_flower.simulations.config import Config, default_run_config
    from pncs_flower.simulations.run.in_process import InProcessGrid
    from pncs_flower.simulations.run.training import train

    settings = {"strategy": "farthest:FarthestRule", "num-rounds": 2, "device": "cpu"}
    config = Config.from_run_config(default_run_config() | settings)
    rows: list = []
    grid = InProcessGrid(client_app, 4, config.to_run_config())
    train(grid, config, tmp_path / "run", rows.append)
    assert [row["rule"] for row in rows] == ["FarthestRule(num_selected=2, sketch='count:64')"] * 2
