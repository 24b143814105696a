"""The app asks for small summaries by default; the paper's experiments say what they ask for."""

from functools import cache
from hashlib import blake2b
from inspect import signature
from pathlib import Path

import pytest

from pncs_flower.simulations.board.file import read_board, sweeps_of
from pncs_flower.simulations.client_app import app as client_app
from pncs_flower.simulations.config import APP_DIRECTORY, Config, default_run_config
from pncs_flower.simulations.run.folder import read_rounds
from pncs_flower.simulations.run.in_process import InProcessGrid
from pncs_flower.simulations.run.strategy import build_strategy
from pncs_flower.simulations.run.training import train
from pncs_flower.simulations.study import study
from pncs_flower.simulations.sweep.cell import Cell
from pncs_flower.simulations.sweep.file import read_sweep
from pncs_flower.strategies import DivFL, GradientMemory
from pncs_flower.strategies.rules.pncs import SMALL

COMPARING = {"pncs": SMALL, "gradient-memory": "count:256", "divfl": "count:256"}
EXPERIMENTS = APP_DIRECTORY / "experiments"

# Of the names of all cells, and of those of the quick version: while these hold, results that are
# there stay valid.
NAMES = {
    "devices": "b93930315b99",
    "fedxplore-small": "e217b628167d",
    "fedxplore": "33fd80a13f5a",
    "figure-fashion": "807013535101",
    "figure-queue": "232331e45580",
    "figure-select4": "af066e029a8d",
    "local-epoch": "7d95cf27e506",
    "oort": "76ee39528ee6",
    "per-layer": "36be19217821",
    "rest": "547398a10580",
    "rules-100": "c7b297601d48",
    "sketched-mean": "873d4d3c3394",
    "table2-two-layers": "3833900f6d45",
    "table2": "a7152d1aef9f",
}
SMALL_SKETCHES = {"devices", "fedxplore", "fedxplore-small", "oort", "rest", "sketched-mean"}
NAMES_OF_TABLE_1 = "2107914dd7f8"


@cache
def cells_of(path: Path) -> tuple[list[Cell], list[Cell]]:
    """Return the cells of a sweep, and of its quick version."""
    sweep = read_sweep(path)
    return sweep.cells(), sweep.quickened().cells()


def of(text: str) -> str:
    return blake2b(text.encode(), digest_size=6).hexdigest()


def settings(**own: str | int) -> Config:
    given = {key.replace("_", "-"): value for key, value in own.items()}
    return Config.from_run_config(default_run_config() | given)


@pytest.mark.parametrize("strategy", COMPARING)
def test_each_rule_asks_for_its_own_sketch_unless_one_is_named(strategy: str) -> None:
    own, whole = (
        build_strategy(settings(strategy=strategy, **given)).rule.request
        for given in ({}, {"rule.sketch": "layers"})
    )
    assert own is not None
    assert own.sketch == COMPARING[strategy]
    assert whole is not None
    assert whole.sketch == "layers"


def test_the_table_above_is_the_librarys() -> None:
    for kind, name in ((GradientMemory, "gradient-memory"), (DivFL, "divfl")):
        default = signature(kind).parameters["sketch"].default
        assert default == COMPARING[name]


def test_a_run_with_the_default_settings_sends_a_quarter_of_full_participation(
    tmp_path: Path,
) -> None:
    config = settings(num_rounds=1, device="cpu", checkpoint=False)
    assert (config.strategy, config.num_selected) == ("pncs", 2)
    train(InProcessGrid(client_app, 10, config.to_run_config()), config, tmp_path, lambda row: None)
    (row,) = read_rounds(tmp_path)
    assert len(row["asked"]) == 10
    up = row["bytes_up"]
    of_all = 10 * up["training"] / len(row["delivered"])
    assert up["pre-round"] + up["training"] <= 0.25 * of_all


@pytest.mark.parametrize("name", sorted(NAMES.keys() - SMALL_SKETCHES))
def test_the_papers_experiments_compare_whole_layers(name: str) -> None:
    for each in cells_of(EXPERIMENTS / f"{name}.toml"):
        # The sketched mean is not the paper's, and has a sketch of its own.
        mean = [cell for cell in each if cell.line == "sketched-mean"]
        assert all('sketch = "count:256"' in cell.command for cell in mean)
        cells = [cell for cell in each if cell.settings["strategy"] in COMPARING]
        assert cells
        for cell in cells:
            request = build_strategy(cell.config).rule.request
            assert request is not None
            assert request.sketch == "layers"
            assert 'sketch = "layers"' in cell.command


@pytest.mark.parametrize("path", sorted(EXPERIMENTS.glob("*.toml")), ids=lambda path: path.stem)
def test_the_papers_cells_have_the_names_that_they_had(path: Path) -> None:
    names = [cell.name("") for each in cells_of(path) for cell in each]
    assert of("\n".join(names)) == NAMES[path.stem]


def test_each_cell_of_pncs_says_how_long_clients_rest() -> None:
    """What was published keeps its meaning, whatever the default is."""
    cells = [
        cell for path in EXPERIMENTS.glob("*.toml") for each in cells_of(path) for cell in each
    ]
    for path in (APP_DIRECTORY / "boards").glob("*.toml"):
        cells += (cell for sweep in sweeps_of(read_board(path)).values() for cell in sweep.cells())
    settings = [cell.settings for cell in cells if cell.settings["strategy"] == "pncs"]
    assert settings
    assert all(own["queue-length"] != -1 or own["rest-rounds"] != -1 for own in settings)


def test_the_files_of_table_1_have_the_names_that_they_had(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(study, "inputs_fingerprint", lambda config: "")
    names = [
        study._file_name(each, config)
        for each in (study.Study.of_the_paper({}), study.Study.of_the_paper({}, quick=True))
        for config in each.configs().values()
    ]
    assert of("\n".join(names)) == NAMES_OF_TABLE_1
