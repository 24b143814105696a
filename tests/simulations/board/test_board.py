"""Boards: what a file may say, what becomes of it, and the page of a small one."""

import csv
import re
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pncs_flower.simulations.board.file import read_board, sweeps_of
from pncs_flower.simulations.board.results import Queue
from pncs_flower.simulations.cli import app
from pncs_flower.simulations.cli.board import file_of
from pncs_flower.simulations.folders import BOARD, WRITTEN

SMALL = """
title = "A small <board>"
rules = ["pncs", "pncs, rested", "uniform", "half", "all"]
seeds = 2
about = "For a test."

[settings]
num-rounds = 3
device = "cpu"
batch-size = 0

[rule."pncs, rested"]
strategy = "pncs"
rest-rounds = 2

[rule.half]
strategy = "sketched-mean"
rule.candidates = "50% of clients"

[setting.few]
name = "5 hospitals"
clients = 5
selected = 2
dirichlet = 1.0
settings = {lr = 0.3}

[setting.many]
name = "10 phones"
about = "They come and go."
clients = 10
selected = 2
shards = 2
settings = {lr = 0.3, devices = "uniform"}
quick = {clients = 5}

[quick]
seeds = 1
num-rounds = 2

[report]
reference = "pncs"
rounds = [2, 3]
claims = [
    {text = "PNCS is the best", kind = "best", against = ["uniform"]},
    {text = "PNCS is ahead", kind = "ahead", against = ["uniform"], from = 2},
]

[[see]]
page = "results.md"
text = "more | of it"
"""


def board(tmp_path: Path, old: str = "", new: str = "") -> Path:
    assert old in SMALL
    file = tmp_path / "small.toml"
    file.write_text(SMALL.replace(old, new, 1))
    return file


def pncs(*arguments: str | Path) -> str:
    done = CliRunner().invoke(app, [*map(str, arguments)])
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[setting.few]", "[setting.'Few of']", "the setting 'Few of' names a folder: it must"),
        ('"5 hospitals"', '"10 phones"', "two settings have the name '10 phones': rename one"),
        ("selected = 2", "", "missing: setting.few.selected"),
        (
            "selected = 2",
            "selceted = 2",
            "missing: setting.few.selected; unknown key setting.few.selceted: did you mean "
            "'selected'",
        ),
        ("dirichlet = 1.0", "dirichlets = 1.0", "unknown key setting.few.dirichlets: did you "),
        ("selected = 2", "selected = 6", "setting.few: selected = 6 is more than clients = 5"),
        ("shards = 2", "shards = 2\niid = true", "setting.many: it has several partitions: give"),
        ("shards = 2", "", "setting.many: shards and dirichlet are both empty"),
        ("num-rounds = 2", 'name = "x"', "quick: quick cannot replace name: settings stand in"),
        # What is wrong in all settings alike is the board's.
        ("num-rounds = 2", "lrr = 2", "quick: unknown setting 'lrr': did you mean"),
        ("batch-size = 0", "batch-zise = 0", "unknown setting 'batch-zise': did you mean"),
        (
            'about = "For a test."',
            "lr = 0.1",
            "lr is a setting: it belongs into the table settings",
        ),
        (
            "dirichlet = 1.0",
            "lr = 0.1",
            "setting.few.lr is a setting: it belongs into the table setting.few.settings",
        ),
        ("quick = {clients = 5}", "quick = {lrr = 5}", "quick: setting.many: unknown setting 'lrr"),
        (
            'rules = ["pncs"',
            'rules = ["pnsc"',
            "rules: there is no rule 'pnsc': did you mean 'pncs'",
        ),
        (
            '"pncs, rested", "uniform"',
            '"pncs, rest", "uniform"',
            "rules: there is no rule 'pncs, rest': did you mean 'pncs, rested'?",
        ),
        (
            'ence = "pncs"',
            'ence = "pcns"',
            "report.reference: there is no 'pcns': did you mean 'pn",
        ),
        (
            'ence = "pncs"',
            'ence = "q"',
            "report.reference: there is no 'q': there are pncs; pncs, ",
        ),
    ],
)
def test_what_is_wrong_in_a_file_is_named(old: str, new: str, message: str, tmp_path: Path) -> None:
    file = board(tmp_path, old, new)
    with pytest.raises(ValueError, match=f"^{re.escape(f'{file}: {message}')}"):
        read_board(file)


def test_each_setting_is_a_sweep_and_a_share_of_clients_a_number(tmp_path: Path) -> None:
    sweeps = sweeps_of(read_board(board(tmp_path)), ["rules=half,all"], {"seeds": 1}, {"lr": 0.1})
    found = {
        key: [(c.line, c.clients, c.settings["rule"], c.settings["lr"]) for c in sweep.cells()]
        for key, sweep in sweeps.items()
    }
    assert found == {
        "few": [("half", 5, "candidates = 2", 0.1), ("all", 5, "", 0.1)],
        "many": [("half", 10, "candidates = 5", 0.1), ("all", 10, "", 0.1)],
    }
    rested = sweeps_of(read_board(board(tmp_path)), ["setting=few", "rules=pncs, rested;pncs"])
    assert [sweep.rules for sweep in rested.values()] == [("pncs", "pncs, rested")]
    for only, told in (
        (["setting=many,fe"], "of setting there is no 'fe': did you mean 'few'?"),
        (["settings=few"], "there is no axis 'settings': did you mean 'setting'?"),
        (["setting="], "--only setting=: the board has few, many"),
        (["setting=few", "setting=many"], "--only setting is given twice"),
        (["x=1"], "there is no axis 'x': there are setting, rules, shards"),
    ):
        with pytest.raises(ValueError, match=re.escape(told)):
            sweeps_of(read_board(board(tmp_path)), only)


def test_the_board_of_the_documentation_is_valid(tmp_path: Path) -> None:
    page = Path(__file__).parents[3] / "docs" / "sweeps.md"
    file = tmp_path / "board.toml"
    file.write_text(page.read_text().split("```toml\n")[2].split("```")[0])
    assert [len(sweep.cells()) for sweep in sweeps_of(read_board(file)).values()] == [12, 12]


def test_the_leaderboard_has_the_settings_that_it_is_to_have() -> None:
    sweeps = sweeps_of(read_board(file_of("leaderboard")))
    cells = [sweep.cells()[0] for sweep in sweeps.values()]
    assert {cell.clients for cell in cells} >= {10, 100, 1000}
    assert {cell.settings["model"] for cell in cells} >= {"linear", "mlp", "cnn", "resnet8"}
    assert {cell.settings["devices"] for cell in cells} >= {"none", "phones", "cross-silo"}
    dealt = {cell.panel.split(",")[0] for cell in cells}
    assert dealt >= {"shards 1", "shards 2", "shards 5", "dirichlet 0.1", "dirichlet 0.3"}
    assert len({frozenset(sweep.rules) for sweep in sweeps.values()}) == 1


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with one setting that was run, and then the other."""
    place = tmp_path_factory.mktemp("board")
    command = ["sweep", board(place), "--workers", "0", "--output", place / "out"]
    first = pncs(*command, "--only", "setting=few", "--only", "rules=pncs,uniform,all")
    assert "Settings without a result: 10 phones" in first
    assert "Not there yet: 10 phones all runs" in (place / "out" / "leaderboard.md").read_text()
    cells = {path: path.stat().st_mtime_ns for path in place.glob("out/few/cells/*")}
    assert len(cells) == 6
    assert "10 runs, of which 6 are there" in pncs(*command)
    assert {path: path.stat().st_mtime_ns for path in cells} == cells
    return place / "out"


def test_data_that_cannot_be_divided_are_told_before_any_setting_runs(tmp_path: Path) -> None:
    file, place = board(tmp_path, "clients = 10", "clients = 7"), tmp_path / "out"
    done = CliRunner().invoke(app, ["sweep", str(file), "--workers", "0", "--output", str(place)])
    assert done.exit_code == 1
    assert f"{file}: setting.many: pncs, seed 0: 7 clients x 2 shards" in done.output
    assert not place.exists()


def test_a_setting_without_its_description_has_no_result(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "board")
    (tmp_path / "board" / "many" / "sweep.json").unlink()
    assert "Settings without a result: 10 phones" in pncs("report", tmp_path / "board")


def test_the_page_and_its_twin_say_the_same(folder: Path) -> None:
    html, twin = ((folder / name).read_text() for name in ("report.html", "leaderboard.md"))
    with (folder / "leaderboard.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 10
    written = {path.name for path in folder.iterdir() if path.is_file()}
    assert written - {BOARD, "lock"} == {*WRITTEN[BOARD]}
    for row in rows:
        end = f"{float(row['at the end']):.3f}"
        assert end in html
        assert end in twin
        # Those who are asked for a sketch train too.
        clients = 5 if row["setting"] == "few" else 10
        training = {"uniform": 2, "half": clients // 2, "all": clients}
        if row["rule"] in training:
            assert float(row["train in a round"]) == training[row["rule"]]
    few = {r["rule"]: float(r["at the end"]) for r in rows if r["setting"] == "few"}
    best = max((rule for rule in few if rule != "all"), key=few.__getitem__)
    beside = f"| 5 hospitals | {few['all']:.3f} | {few['uniform']:.3f} | "
    assert f"{beside}**{best}**: {few[best]:.3f}" in twin
    for text in ("Nemenyi", "“PNCS is the best”", "They come and go.", "For a test."):
        assert text in html
        assert text in twin
    assert "A small &lt;board&gt;" in html
    claim = " ".join(twin.split()).partition("“PNCS is the best”: ")[2]
    assert re.match(r".*in \d of 2 settings.*\. With pncs, rested: .*in \d of 2 settings", claim)
    claim = claim.partition("“PNCS is ahead”: ")[2]
    assert re.match(r".* Seen is what holds in every round from round 2 on\.", claim)
    assert "**What 2 seeds cannot tell:**" in twin
    assert "4 entries (3 rules, and 1 with another setting) in 2 settings, 20 runs." in twin
    assert "[more | of it](results.md)" in " ".join(twin.split())
    assert "![Mean ranks" in twin
    assert "![Mean ranks" not in html
    svg = (folder / "leaderboard.svg").read_text()
    assert svg.count("<rect") == 1 + 4 * 2  # the background, four rules in two settings
    # Half of 5 clients are the 2 who send, of 10 more than these.
    assert len(re.findall(r"\d\*<", svg)) == 1
    (half,) = (line for line in twin.splitlines() if line.startswith("| half | Select"))
    assert half.endswith(
        "| `SketchedMean(candidates=2)` | - | others too; in 1 of 2 settings who sends |"
    )
    assert "| `PNCS` | as long as leaves a choice: a rest of 3 or 1 rounds | others too |" in twin
    # With 2 of 5 chosen 4 rest, and nothing is left to choose.
    assert (
        "| `PNCS(rest_rounds=2)` | a queue of 4 clients: a rest of 2 rounds; in 1 of 2 settings "
        "nothing is left to choose | others too |" in twin
    )
    assert not re.search(r"\bnan\b|\binf\b", html + twin + svg)


def test_a_queue_that_leaves_as_many_as_are_selected_is_a_rotation() -> None:
    assert Queue(length=8, rounds=4, selected=2, clients=10).is_rotation
    assert not Queue(length=7, rounds=3, selected=2, clients=10).is_rotation
    assert not Queue(length=None, rounds=3, selected=2, clients=10).is_rotation
    assert not Queue(length=0, rounds=0, selected=5, clients=5).is_rotation


def test_a_board_is_reported_again_and_takes_no_data_for_all_of_it(folder: Path) -> None:
    before = (folder / "leaderboard.md").read_text()
    (folder / "leaderboard.md").unlink()
    assert "Mean ranks, 1 is best: " in pncs("report", folder)
    assert (folder / "leaderboard.md").read_text() == before
    few = ("--quick", "--only", "setting=one-label", "--only", "rules=uniform", "--workers", "0")
    pncs("reproduce", "leaderboard", *few, "--set", "num-rounds=1", "--output", folder)
    assert (folder / "leaderboard-quick" / "leaderboard.md").is_file()
    refused = CliRunner().invoke(app, ["reproduce", "leaderboard", "--data", "digits"])
    assert refused.exit_code == 1
    assert "--data digits: the settings of a board have theirs" in refused.output
