"""What a person sees, made from a folder written by hand."""

import re
from pathlib import Path
from typing import Any

import pytest
from matplotlib import image
from rich.console import Console

from pncs_flower.simulations.config import Config, default_run_config
from pncs_flower.simulations.report.of_run import final_table, round_line, served_lines
from pncs_flower.simulations.report.picture_of_run import draw_rounds
from pncs_flower.simulations.run.folder import (
    ROUNDS,
    finish,
    follow_rounds,
    open_run,
    output_path,
    read_rounds,
)
from pncs_flower.strategies.record import write_json_lines

CONFIG = Config.from_run_config(default_run_config())


def row(number: int, chosen: list[str], cooling: list[str], **other: Any) -> dict[str, Any]:
    return {
        "round": number,
        "rule": "a rule",
        "clients": ["0", "1", "2"],
        "chosen": chosen,
        "delivered": chosen,
        "cooling": cooling,
        "mean_similarity": -0.25,
        "accuracy": 0.5,
        "loss": 1.25,
        "elapsed": float(number),
        "seconds": {"pre-round": 0.5, "training": 0.25},
        "rejected": {},
        "notes": [],
        **other,
    }


SUMMARY = {
    "rounds": 2,
    "initial-accuracy": 0.1,
    "final-accuracy": 0.5,
    "best-accuracy": 0.5,
    "seconds": 1.5,
    "bytes-up": 1_500_000,
    "bytes-down": 999,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rows = [
        row(1, ["0", "2"], []),
        row(2, ["1"], ["0", "2"], delivered=[], loss=None),
    ]
    with open_run(tmp_path / "run", CONFIG):
        finish(tmp_path / "run", rows, {}, SUMMARY)
    return tmp_path / "run"


def test_a_line_says_what_happened() -> None:
    line = round_line(row(3, ["0", "2"], []), 20)
    assert line == (
        "round  3/20  accuracy 0.500  loss 1.250  chosen 0, 2  similarity -0.250  0.75 s"
    )


def test_what_is_out_of_the_ordinary_has_a_line_of_its_own() -> None:
    line = round_line(row(3, ["0"], [], rejected={"2": "no reply"}, notes=["slow"]), 3)
    assert line.splitlines()[1:] == ["  not used: client 2: no reply", "  note: slow"]


def test_a_rule_without_similarity_shows_none() -> None:
    seconds = {"waiting": 34.5, "train": 0.25}
    assert "0.25 s  after 34.5 s of waiting" in round_line(row(1, ["0"], [], seconds=seconds), 1)
    assert "waiting" not in round_line(row(1, ["0"], [], seconds={"waiting": 0.1}), 1)
    assert "similarity" not in round_line(row(1, ["0"], [], mean_similarity=None), 1)


def test_the_table_has_a_row_per_round(folder: Path) -> None:
    console = Console(width=100, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(final_table(folder))
    text = console.export_text()
    assert "0.100 before training, 0.500 after 2 rounds" in text
    assert "clients sent 1.5 MB and received 999 bytes" in text
    assert [line.split("│")[1:5] for line in text.splitlines() if "│" in line] == [
        ["     1 ", "    0.500 ", " 1.250 ", " 0, 2   "],
        ["     2 ", "    0.500 ", "     - ", " 1      "],
    ]


def test_the_picture_shows_each_state_in_its_colour(folder: Path) -> None:
    pixels = image.imread(draw_rounds(folder))
    colours = {tuple(round(float(c) * 255) for c in p[:3]) for line in pixels[::3] for p in line}
    for colour in ("f2f2f2", "b9d7ec", "0072b2", "d55e00"):
        assert tuple(bytes.fromhex(colour)) in colours


def test_a_line_still_being_written_is_left_for_later(folder: Path) -> None:
    with (folder / ROUNDS).open("a") as file:
        file.write('{"round": 3')
    assert [r["round"] for r in read_rounds(folder)] == [1, 2]


def test_rounds_are_followed_as_they_come_and_as_they_are_done_again(folder: Path) -> None:
    news = follow_rounds(folder)
    assert news() == []
    before = read_rounds(folder)
    write_json_lines(folder / ROUNDS, [*before, row(3, ["0"], [], elapsed=3.0)])
    assert [r["round"] for r in news()] == [3]
    assert news() == []
    rows = [*before, row(3, ["1"], [], elapsed=3.5), row(4, ["0"], [], elapsed=4.0)]
    write_json_lines(folder / ROUNDS, rows)
    assert [(r["round"], r["chosen"]) for r in news()] == [(3, ["1"]), (4, ["0"])]
    write_json_lines(folder / ROUNDS, [*rows, row(5, ["0"], [], accuracy=None)])
    assert news() == []  # its end is to come


@pytest.mark.parametrize("line", ["{}", "3", "null", '{"round": 3}', "[1, 2]", "{"])
def test_line_that_is_no_round_is_named(line: str, folder: Path) -> None:
    with (folder / ROUNDS).open("a") as file:
        file.write(f"{line}\n")
    with pytest.raises(ValueError, match=r"line 3 of .*rounds\.jsonl is no round of a run"):
        read_rounds(folder)


@pytest.mark.parametrize(
    ("rounds", "instead"),
    [(2, ""), (3, ", or go on with that run: pncs run --resume {} --rounds 3")],
)
def test_a_folder_with_a_run_is_not_written_again(rounds: int, instead: str, folder: Path) -> None:
    own = {"output-dir": str(folder), "num-rounds": rounds}
    told = f"{folder} holds a run already: give another --output{instead.format(folder)}"
    with pytest.raises(FileExistsError, match=f"^{re.escape(told)}$"):
        output_path(Config.from_run_config(default_run_config() | own))


SERVED = {
    "num-clients": 3,
    "gini": 0.4567,
    "jain": 0.5,
    "never-chosen": 1,
    "never-delivered": 2,
    "longest-wait": 2,
    "mean-client-accuracy": 0.5,
    "client-accuracy-variance": 0.04,
    "worst-tenth-accuracy": 0.25,
    "accuracy-by-class": [0.3, None, 0.9],
    "accuracy-by-client": {"0": 0.25, "1": None, "2": 0.75},
}


def test_lines_say_whom_a_run_has_served() -> None:
    assert served_lines(SERVED) == [
        "1 of 3 clients never chosen; 2 never in the model; longest wait 2 rounds",
        "Jain's fairness index of how often each client delivered (1: all alike): 0.50",
        "Gini's coefficient of the same (0: all alike): 0.46",
        "Accuracy by clients' labels: mean 0.500, deviation 0.200, worst tenth 0.250",
        "By class: 0.300 (class 0) to 0.900 (class 2)",
    ]


def test_no_line_says_what_is_not_known() -> None:
    assert served_lines(SUMMARY) == []
    unknown = dict.fromkeys(("mean-client-accuracy", "worst-tenth-accuracy"))
    lines = served_lines(SERVED | unknown | {"never-delivered": 1, "num-clients": 1})
    assert lines[0] == "1 of 1 client never chosen; longest wait 2 rounds"
    assert len(lines) == 3  # none of accuracies


def test_the_picture_shows_accuracies_of_clients_where_they_are_known(tmp_path: Path) -> None:
    rows = [row(n, ["0"], [], **{"worst-tenth-accuracy": 0.25}) for n in (1, 2)]
    widths = []
    for name, summary in ("old", SUMMARY), ("new", SUMMARY | SERVED):
        with open_run(tmp_path / name, CONFIG):
            finish(tmp_path / name, rows, {}, summary)
        widths.append(image.imread(draw_rounds(tmp_path / name)).shape[1])
    assert widths[0] < widths[1]


def test_the_picture_of_a_run_shows_rounds_without_a_finite_score(tmp_path: Path) -> None:
    scores = (0.5, None, 0.25, None)
    rows = [
        row(n, ["0"], [], accuracy=score, clock=0.0, simulated_seconds={"training": 9.0})
        for n, score in enumerate(scores, start=1)
    ]
    with open_run(tmp_path / "run", CONFIG):
        finish(tmp_path / "run", rows, {}, SUMMARY | {"final-accuracy": None})
    assert draw_rounds(tmp_path / "run").stat().st_size > 10_000


def test_the_picture_of_thousands_is_drawn(tmp_path: Path) -> None:
    many = [str(k) for k in range(3000)]
    with open_run(tmp_path / "many", CONFIG):
        finish(tmp_path / "many", [row(1, ["7"], [], clients=many)], {}, SUMMARY)
    assert draw_rounds(tmp_path / "many").stat().st_size > 10_000


def test_the_picture_shows_simulated_time_where_there_are_devices(tmp_path: Path) -> None:
    heights = []
    for name, clock in ("none", None), ("phones", 0.0):
        rows = [row(n, ["0"], [], clock=clock, simulated_seconds={"training": 9.0}) for n in (1, 2)]
        with open_run(tmp_path / name, CONFIG):
            finish(tmp_path / name, rows, {}, SUMMARY)
        heights.append(image.imread(draw_rounds(tmp_path / name)).shape[0])
    assert heights[0] < heights[1]


@pytest.mark.parametrize(
    ("own", "absent"),
    [
        ({}, {"cooling down", "left over", "simulated"}),
        ({"cooling": ["1"]}, {"left over", "simulated"}),
        (
            {"mean_similarity": None, "combined": {"residual": 0.5}},
            {"cooling down", "similarity", "simulated"},
        ),
        (
            {"mean_similarity": None, "clock": 0.0, "simulated_seconds": {"training": 9.0}},
            {"cooling down", "similarity", "left over"},
        ),
    ],
)
def test_the_table_has_no_column_without_a_value(
    own: dict[str, Any], absent: set[str], tmp_path: Path
) -> None:
    rows = [row(number, ["0"], []) | own for number in (1, 2)]
    summary = SUMMARY | ({"simulated-seconds": 9.0} if "clock" in own else {})
    with open_run(tmp_path / "run", CONFIG):
        finish(tmp_path / "run", rows, {}, summary)
    table = final_table(tmp_path / "run")
    explained = {"cooling down", "left over", "similarity", "simulated"}
    assert explained - {str(column.header) for column in table.columns} == absent
    assert (
        explained - {line.partition(":")[0] for line in str(table.caption).splitlines()} == absent
    )


def test_the_picture_has_a_row_for_clients_that_were_never_there(tmp_path: Path) -> None:
    heights = []
    for name, known in ("seen", ["0"]), ("all", [str(k) for k in range(20)]):
        with open_run(tmp_path / name, CONFIG):
            own = {"accuracy-by-client": dict.fromkeys(known, 0.5)}
            finish(tmp_path / name, [row(1, ["0"], [])], {}, SUMMARY | SERVED | own)
        heights.append(image.imread(draw_rounds(tmp_path / name)).shape[0])
    assert heights[0] < heights[1]
