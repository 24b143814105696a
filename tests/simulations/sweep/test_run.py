"""A sweep is run, goes on where it stopped, and its report says what was measured."""

import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cells import change
from matplotlib.figure import Figure
from typer.testing import CliRunner

from pncs_flower.simulations.cli import app
from pncs_flower.simulations.cli.sweep import ALL
from pncs_flower.simulations.report.of_sweep import write_report
from pncs_flower.simulations.report.pictures_of_sweep import _draw_line, _look
from pncs_flower.simulations.run.folder import read_rounds
from pncs_flower.simulations.sweep import run as sweep_run
from pncs_flower.simulations.sweep.cell import Cell, Run, digest, read_cell
from pncs_flower.simulations.sweep.plan import Report
from pncs_flower.simulations.sweep.pool import Moved
from pncs_flower.simulations.sweep.progress import ROUNDS
from pncs_flower.simulations.sweep.results import read_results
from pncs_flower.simulations.sweep.run import run_sweep
from pncs_flower.simulations.sweep.sweep import Sweep

NEEDS_CHROMIUM = pytest.mark.skipif(
    shutil.which("chromium") is None, reason="needs Debian's package chromium"
)

SWEEP = Sweep(
    "<A sweep> & its title",
    ("pncs", "uniform"),
    clients=5,
    seeds=2,
    settings={"num-rounds": 2, "device": "cpu"},
    report=Report(
        reference="pncs",
        rounds=(1, 2),
        claims=({"text": "PNCS is best", "kind": "best", "against": ["uniform"]},),
    ),
)


def run(sweep: Sweep, folder: Path, workers: int = 0) -> tuple[list[str], dict[str, str]]:
    over: list[str] = []
    failures = run_sweep(
        sweep, folder, workers, lambda cell, done, total: over.append(f"{cell.line} {done}/{total}")
    )
    return over, failures


def cells(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in (folder / "cells").iterdir()}


def text(path: Path) -> str:
    return path.read_text()


def measured(folder: Path) -> list[Any]:
    """Return what must not depend on how a sweep was run."""
    results = read_results(folder)
    return [(r.cell, r.scores.tolist(), [row["chosen"] for row in r.rounds]) for r in results.runs]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sweep")
    over, failures = run(SWEEP, folder)
    assert over == ["pncs 1/4", "uniform 2/4", "pncs 3/4", "uniform 4/4"]
    assert not failures
    write_report(folder, read_results(folder))
    return folder


def test_finished_cells_are_not_run_again(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished / "cells", tmp_path / "cells")
    before = cells(tmp_path)
    lost = sorted(before)[1]
    (tmp_path / "cells" / lost).unlink()
    over, _ = run(SWEEP, tmp_path)
    assert len(over) == 1
    after = cells(tmp_path)
    assert after.keys() == before.keys()
    assert all(after[name] == before[name] for name in before if name != lost)
    assert measured(tmp_path) == measured(finished)


def test_more_seeds_add_cells_and_keep_those_there(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished / "cells", tmp_path / "cells")
    over, _ = run(replace(SWEEP, seeds=3), tmp_path)
    assert over == ["pncs 5/6", "uniform 6/6"]


def test_cells_of_before_pncs_had_clients_rest_by_their_number_keep_what_they_were(
    finished: Path, tmp_path: Path
) -> None:
    shutil.copytree(finished, tmp_path / "sweep")
    cells = {cell.line: cell for cell in SWEEP.cells() if cell.seed == 0}
    for line, length in {"pncs": 4, "uniform": -1}.items():
        cell = cells[line]
        (path,) = (tmp_path / "sweep" / "cells").glob(f"*-{line}-0-*")
        own = digest(cell.clients, cell.settings, "")
        assert cell.name("").endswith(own) == (line == "uniform")  # else it would not be run again
        assert read_cell(path).cell["settings"]["queue-length"] == -1
        change(path, r'"rest_rounds": \d+, ', "")
        assert read_cell(path).cell["settings"]["queue-length"] == length


def test_a_cell_that_fails_does_not_stop_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(cell: Cell, moved: Moved, scratch: str, **how: Any) -> Run:
        if cell.line == "pncs":
            raise OSError(28, "No space left on device")
        return Run({}, [], {})

    monkeypatch.setattr(sweep_run, "_run_cell", fail)
    over, failures = run(SWEEP, tmp_path)
    assert len(over) == 4
    assert sorted(name.partition("-pncs-")[1] for name in failures) == ["-pncs-", "-pncs-"]
    assert set(failures.values()) == {"OSError: [Errno 28] No space left on device"}
    assert len(cells(tmp_path)) == 2


def test_cell_that_fails_keeps_its_traceback_until_it_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = replace(SWEEP, rules=("uniform",), seeds=1, report=Report())

    def fail(cell: Cell, moved: Moved, scratch: str, **how: Any) -> None:
        np.zeros(2) + np.zeros(3)

    with monkeypatch.context() as patch:
        patch.setattr(sweep_run, "_run_cell", fail)
        _, failures = run(sweep, tmp_path)
    (name,) = failures
    details = tmp_path / "failed" / f"{name}.txt"
    assert "np.zeros(2) + np.zeros(3)" in text(details)
    run(sweep, tmp_path)
    assert not details.exists()


def test_what_is_missing_is_named_in_the_report(finished: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(finished, tmp_path / "sweep")
    lost = next((folder / "cells").glob("*uniform-1-*"))
    lost.unlink()
    text = write_report(folder, read_results(folder)).read_text()
    assert "Runs without a result: 1<" in text
    assert f"<li>{lost.stem}</li>" in text
    assert "some means are over fewer seeds than others" in text
    assert "fewer seeds" not in (finished / "report.html").read_text()


def test_a_panel_without_any_result_is_remembered(finished: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(finished, tmp_path / "sweep")
    about = json.loads((folder / "sweep.json").read_text())
    about["panels"].append("shards 9")
    (folder / "sweep.json").write_text(json.dumps(about) + "\n")
    assert read_results(finished).lost == []
    assert read_results(folder).lost == ["shards 9"]


@pytest.mark.parametrize("heading", ["What it takes to reach an accuracy", "Paired tests"])
def test_a_page_has_no_empty_table(heading: str, finished: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(finished, tmp_path / "sweep")
    about = json.loads((folder / "sweep.json").read_text())
    about["report"]["targets"] = []
    (folder / "sweep.json").write_text(json.dumps(about) + "\n")
    for path in (folder / "cells").glob("*uniform*"):
        path.unlink()
    page = write_report(folder, read_results(folder)).read_text()
    assert heading in (finished / "report.html").read_text()
    assert heading not in page
    assert "<tbody></tbody>" not in page


def test_runs_of_several_releases_are_told_of(finished: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(finished, tmp_path / "sweep")
    other = next((folder / "cells").glob("*uniform-1-*"))
    change(other, r'("numpy": )"[^"]*"', r'\1"1.0.9"')
    page = write_report(folder, read_results(folder)).read_text()
    assert "some runs were made with other releases than others" in page
    assert re.search(r"numpy [0-9.]+ and 1\.0\.9", page)
    assert "other releases" not in (finished / "report.html").read_text()


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_text(path.read_text()[:-20]),
        lambda path: path.write_text(""),
        lambda path: path.write_text(path.read_text().splitlines()[0]),
        lambda path: path.write_text("".join(path.read_text().splitlines(True)[::2])),
        lambda path: path.write_text("{}\n[]\n3\n"),
        lambda path: path.write_bytes(b"\xff\x00"),
        lambda path: (path.unlink(), path.mkdir()),
        lambda path: shutil.copy(next(path.parent.glob("*pncs-1-*")), path),
        lambda path: path.write_text(text(path).replace('"accuracy": 0.', '"accuracy": 0.0', 1)),
        lambda path: path.write_text(text(path) + "\n"),
    ],
    ids=["cut", "empty", "header", "rounds", "JSON", "bytes", "folder", "another", "digit", "more"],
)
def test_a_damaged_cell_is_named_before_anything_runs(
    damage: Callable[[Path], Any], finished: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(finished, tmp_path / "sweep")
    damaged = next((folder / "cells").glob("*uniform-0-*"))
    damage(damaged)
    with pytest.raises(ValueError, match=rf"{damaged.name} is damaged: delete it and run again"):
        read_results(folder)
    next((folder / "cells").glob("*pncs-0-*")).unlink()
    with pytest.raises(ValueError, match=rf"{damaged.name} is damaged"):
        run(SWEEP, folder)
    assert not list((folder / "cells").glob("*pncs-0-*"))


def test_data_that_cannot_be_divided_is_told_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="7 clients x 3 shards-per-client = 21 shards"):
        run(replace(SWEEP, clients=7, shards=(10, 3)), tmp_path)
    assert not [*tmp_path.iterdir()]


def test_the_command_of_a_cell_gives_its_numbers(finished: Path, tmp_path: Path) -> None:
    cell = read_results(finished).runs[-1]
    arguments = cell.cell["command"].split()[1:]
    done = CliRunner().invoke(app, [*arguments, "--output", str(tmp_path / "run")])
    assert done.exit_code == 0, done.output
    rows = read_rounds(tmp_path / "run")
    assert [row["accuracy"] for row in rows] == cell.scores.tolist()
    assert [row["chosen"] for row in rows] == [row["chosen"] for row in cell.rounds]


def test_the_report_shows_the_means(finished: Path) -> None:
    text = (finished / "report.html").read_text()
    assert "&lt;A sweep&gt; &amp; its title" in text
    runs = read_results(finished).panels["shards 2, layers 1, selected 2"]["pncs"]
    mean = sum(run.converged for run in runs) / len(runs)
    assert re.search(rf'<th scope="row">pncs</th><td>(<strong>)?{mean:.3f} ± ', text)


def test_many_lines_differ_in_colour_or_dashes() -> None:
    axes = Figure().subplots()
    run = Run({}, [{"accuracy": 0.5, "bytes_up": {}}] * 2, {})
    for index, label in enumerate([*(str(n) for n in range(12)), "all"]):
        _draw_line(axes, [run], ROUNDS, _look(index, label == "all"))
    looks = [(line.get_color(), line.get_linestyle()) for line in axes.lines]
    assert len(set(looks)) == len(looks)


def test_the_csv_has_every_round(finished: Path) -> None:
    with (finished / "rounds.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * 2 * 2
    last = read_results(finished).runs[-1]
    assert float(rows[-1]["accuracy"]) == last.scores[-1]
    assert int(rows[-1]["bytes"]) == last.bytes_up[-1]
    assert int(rows[-1]["bytes received"]) == last.bytes_down[-1]
    assert {row["simulated seconds"] for row in rows} == {""}


def test_the_report_shows_whom_each_rule_has_served(finished: Path, tmp_path: Path) -> None:
    runs = read_results(finished).panels["shards 2, layers 1, selected 2"]["pncs"]
    never = [run.summary["never-chosen"] for run in runs]
    page = (finished / "report.html").read_text()
    assert "Who is served" in page
    assert re.search(rf'<th scope="row">pncs</th><td>{sum(never) / 2:.1f} ± ', page)
    with (finished / "runs.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["gini"]) for row in rows[:2]] == [run.summary["gini"] for run in runs]
    assert all(row["worst tenth accuracy"] for row in rows)
    # Cells of a release that did not note it.
    folder = shutil.copytree(finished, tmp_path / "sweep")
    for path in (folder / "cells").iterdir():
        change(path, '"(gini|worst-tenth-accuracy)":', r'"no-\1":')
    page = write_report(folder, read_results(folder)).read_text()
    assert "Who is served" not in page


def browser_messages(page: Path, profile: Path) -> str:
    """Open a page in a browser at a laptop's width, and return what it says on its console."""
    done = subprocess.run(
        [
            "chromium",
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--enable-logging=stderr",
            f"--user-data-dir={profile}",
            "--window-size=1366,768",
            "--dump-dom",
            page.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert "</html>" in done.stdout
    return "\n".join(line for line in done.stderr.splitlines() if "CONSOLE" in line)


@NEEDS_CHROMIUM
def test_a_browser_has_nothing_to_complain_of(finished: Path, tmp_path: Path) -> None:
    assert browser_messages(finished / "report.html", tmp_path) == ""


def test_a_killed_sweep_goes_on_in_other_processes_and_ends_the_same(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    code = (
        "from tests_sweep import SWEEP, run; from pathlib import Path; import sys; "
        "run(SWEEP, Path(sys.argv[1]))"
    )
    (tmp_path / "tests_sweep.py").write_text(Path(__file__).read_text())
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "sweep")],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path]),
            "TMPDIR": str(scratch),
        },
    )
    deadline = time.monotonic() + 120
    while not list((tmp_path / "sweep").glob("cells/*.jsonl")):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = cells(tmp_path / "sweep")
    assert [*scratch.glob("pncs-*")]
    over, failures = run(SWEEP, tmp_path / "sweep", workers=2)
    assert not failures
    assert len(over) == 4 - len([name for name in before if name.endswith(".jsonl")])
    assert measured(tmp_path / "sweep") == measured(finished)
    assert not [*scratch.iterdir()]


def test_an_unknown_table_is_named() -> None:
    done = CliRunner().invoke(app, ["reproduce", "table9"])
    assert done.exit_code == 1
    assert "there is no 'table9': did you mean 'table2'?" in done.output


def test_a_folder_without_a_sweep_is_refused(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["report", str(tmp_path)])
    assert done.exit_code == 1
    assert "has no sweep.json" in done.output.replace("\n", " ")
    assert "for table1, give pncs reproduce table1 again" in done.output.replace("\n", " ")


@pytest.mark.minutes
def test_a_figure_is_reproduced_by_one_command(tmp_path: Path) -> None:
    """The quick version, reduced further: one seed, two rounds."""
    command = "reproduce figure-select4 --quick --seeds 1 --workers 0 --set num-rounds=2 --output"
    done = CliRunner().invoke(app, [*command.split(), str(tmp_path)])
    assert done.exit_code == 0, done.output
    folder = tmp_path / "figure-select4-quick"
    assert "PNCS reaches 40% at the third round" in done.output
    assert len(cells(folder)) == 9
    for name in ("report.html", "rounds.png", "bytes.png", "choices.png", "runs.csv", "tests.csv"):
        assert (folder / name).is_file()
    again = "pncs reproduce figure-select4 --quick --seeds 1 --set num-rounds=2"
    assert f">{again}</code>" in (folder / "report.html").read_text()
    sweep = json.loads((folder / "sweep.json").read_text())
    assert (sweep["model"], sweep["settings"]["dataset"]) == ("scratch", "digits")


@pytest.mark.minutes
@pytest.mark.timeout(1800)
@NEEDS_CHROMIUM
@pytest.mark.skipif("PNCS_REPRODUCE_ALL" not in os.environ, reason="minutes: PNCS_REPRODUCE_ALL=1")
def test_everything_is_reproduced_quickly_from_the_digits(tmp_path: Path) -> None:
    start = time.monotonic()
    done = CliRunner().invoke(app, ["reproduce", "all", "--quick", "--output", str(tmp_path)])
    assert done.exit_code == 0, done.output
    pages = sorted(tmp_path.glob("*/report.html"))
    assert {page.parent.name for page in pages} == {f"{name}-quick" for name in ALL}
    for page in pages:
        assert browser_messages(page, tmp_path / "browser") == "", page
    # Of two cores that nothing else uses; PNCS_REPRODUCE_ALL=600 where something does.
    allowed = float(os.environ["PNCS_REPRODUCE_ALL"])
    assert time.monotonic() - start < (300 if allowed <= 1 else allowed)


def test_a_file_of_devices_counts_by_its_contents(tmp_path: Path) -> None:
    file = tmp_path / "devices.csv"
    head = "client,seconds_per_example,download_kbit_s,upload_kbit_s"
    file.write_text("\n".join([head, *(f"{k},0.01,8,8" for k in range(5)), ""]))
    settings = {"num-rounds": 1, "device": "cpu", "devices": str(file)}
    sweep = Sweep("a sweep", ("uniform",), clients=5, seeds=1, settings=settings)
    assert run(sweep, tmp_path / "out") == (["uniform 1/1"], {})
    assert run(sweep, tmp_path / "out") == ([], {})
    file.write_text(file.read_text().replace("0.01", "0.5"))
    assert run(sweep, tmp_path / "out") == (["uniform 1/1"], {})
    file.write_text(file.read_text().replace("0.5", "fast"))
    with pytest.raises(ValueError, match=r"devices.csv, line 2, field seconds_per_example"):
        run(sweep, tmp_path / "out")


def test_a_sweep_on_devices_is_shown_over_simulated_time(finished: Path, tmp_path: Path) -> None:
    assert "over simulated time" not in (finished / "report.html").read_text()
    settings = {**SWEEP.settings, "lr": 1.0}
    own = Report(reference="pncs", targets=(0.01,))
    sweep = replace(SWEEP, devices=("none", "uniform"), settings=settings, seeds=1, report=own)
    assert run(sweep, tmp_path)[1] == {}
    page = write_report(tmp_path, read_results(tmp_path)).read_text()
    assert "Accuracy over simulated time" in page
    assert (tmp_path / "time.png").stat().st_size > 1000
    with (tmp_path / "reached.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    reached = [row for row in rows if row["rounds"]]
    assert reached
    for row in reached:
        assert bool(row["simulated seconds"]) == ("devices uniform" in row["panel"])
    last = read_results(tmp_path).runs[-1]
    assert last.simulated is not None
    assert last.simulated[-1] == pytest.approx(last.summary["simulated-seconds"])
    assert not any("timeline" in row for row in last.rounds)
