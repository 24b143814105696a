"""Devices from CSV and JSON files, and what is said of a bad line."""

import json
import math

import pytest

from pncs_flower.devices import Always, Trace, as_fleet
from pncs_flower.devices.trace_file import read_devices

NAMES = "client,seconds_per_example,download_kbit_s,upload_kbit_s"
ALL = f"{NAMES},latency_s,dropout,available,repeat_s"


def csv_of(tmp_path, *lines: str, names: str = NAMES):
    path = tmp_path / "devices.csv"
    path.write_text("\n".join([names, *lines]) + "\n", encoding="utf-8")
    return path


def json_of(tmp_path, content: object):
    path = tmp_path / "devices.json"
    text = content if isinstance(content, str) else json.dumps(content, indent=1)
    path.write_text(text, encoding="utf-8")
    return path


def test_csv(tmp_path):
    path = csv_of(
        tmp_path,
        "0,0.02,6000,2000,0.1,0.05,0-3600 7200-9000,86400",
        "",
        "site a,0.001,1e5,1e5,,,,",
        "7, 0.5 ,10,10,,,5-inf,",
        names=ALL,
    )
    first, second, third = read_devices(path).values()
    assert list(read_devices(path)) == ["0", "site a", "7"]
    assert (first.examples_per_second, first.download, first.upload) == (50, 6e6, 2e6)
    assert (first.latency, first.dropout) == (0.1, 0.05)
    assert first.availability == Trace(((0, 3600), (7200, 9000)), 86400)
    assert (second.latency, second.dropout, second.availability) == (0, 0, Always())
    assert third.availability == Trace(((5, math.inf),))
    assert third.examples_per_second == 2


def test_json_says_the_same(tmp_path):
    lines = ["0,0.02,6000,2000,0.1,0.05,0-3600 7200-9000,86400", "1,1,10,10,,,,"]
    content = [
        {
            "client": 0,
            "seconds_per_example": 0.02,
            "download_kbit_s": 6000,
            "upload_kbit_s": 2000,
            "latency_s": 0.1,
            "dropout": 0.05,
            "available": [[0, 3600], [7200, 9000]],
            "repeat_s": 86400,
        },
        {"client": "1", "seconds_per_example": 1, "download_kbit_s": 10, "upload_kbit_s": 10},
    ]
    assert read_devices(json_of(tmp_path, content)) == read_devices(
        csv_of(tmp_path, *lines, names=ALL)
    )


@pytest.mark.parametrize(
    ("line", "field", "words"),
    [
        ("1,nan,1,1", "seconds_per_example", "'nan' must be a finite number above 0"),
        ("1,0,1,1", "seconds_per_example", "above 0"),
        ("1,1,-5,1", "download_kbit_s", "'-5' must be"),
        ("1,1,fast,1", "download_kbit_s", "'fast' is no number"),
        ("1,1,1,inf", "upload_kbit_s", "finite"),
        ("1,1e-320,1,1", "seconds_per_example", "from 1e-12 to 1e\\+12"),
        ("1,1,1e306,1", "download_kbit_s", "from 1e-12 to 1e\\+12"),
        ("1,1,1,", "upload_kbit_s", "is missing"),
        (",1,1,1", "client", "is missing"),
        ("0,1,1,1", "client", "'0' is there already, on line 2"),
    ],
)
def test_bad_field_is_named_with_its_line(tmp_path, line, field, words):
    path = csv_of(tmp_path, "0,1,1,1", line)
    with pytest.raises(ValueError, match=rf"devices\.csv, line 3, field {field}: .*{words}"):
        read_devices(path)


@pytest.mark.parametrize(
    ("line", "field", "words"),
    [
        ("1,1,1,1,-1,,,", "latency_s", "at least 0"),
        ("1,1,1,1,,1.5,,", "dropout", "at most 1"),
        ("1,1,1,1,,,10-5,", "available", "comes at 10 s and goes at 5 s"),
        ("1,1,1,1,,,0-5 4-6,", "available", "has not gone before"),
        ("1,1,1,1,,,soon,", "available", "from when to when"),
        ("1,1,1,1,,,a-b,", "available", "from when to when"),
        ("1,1,1,1,,,0-5,3", "available", "repeat is 3 s"),
        ("1,1,1,1,,,,60", "repeat_s", "no times"),
        ("1,1,1,1,,,nan-5,", "available", "on is nan"),
    ],
)
def test_bad_optional_field_is_named_with_its_line(tmp_path, line, field, words):
    path = csv_of(tmp_path, line, names=ALL)
    with pytest.raises(ValueError, match=rf"line 2, field {field}: .*{words}"):
        read_devices(path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "holds no device"),
        (f"{NAMES}\n", "holds no device"),
        ("client,seconds_per_example,download_kbit_s\n", "line 1, field upload_kbit_s: the column"),
        (f"{NAMES},latency\n", "line 1, field latency: .*did you mean latency_s"),
        (f"{NAMES},client\n", "line 1, field client: it is there twice"),
        (f"{NAMES}\n1,1,1\n", "line 2: it has 3 fields, but the first line names 4"),
        (f'{NAMES}\n1,1,1,"1\n', "line 2: "),
    ],
)
def test_files_that_are_no_table_of_devices(tmp_path, text, words):
    path = tmp_path / "devices.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=words):
        read_devices(path)


GOOD = '{"client": 1, "seconds_per_example": 1, "download_kbit_s": 1, "upload_kbit_s": 1}'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", r"line 1: it must be a list"),
        (GOOD, r"line 1: it must be a list"),
        ("[]", "holds no device"),
        (f"[{GOOD},\n{GOOD}]", "line 2, field client: '1' is there already, on line 1"),
        (f"[{GOOD}\n{GOOD}]", "line 2: a comma"),
        (f"[{GOOD},", "line 1: the list has no end"),
        (f"[{GOOD}]\nmore", "line 2: there is something after"),
        (f"[{GOOD}, 3]", "3 is no device"),
        ('[\n{"client": 1,\n "seconds_per_example": NaN}]', "field download_kbit_s: is missing"),
        ("[" + GOOD.replace('"client": 1', '"client": true') + "]", "True is no client's key"),
        ("[" + GOOD.replace('"upload_kbit_s": 1', '"upload_kbit_s": true') + "]", "True must be"),
        (
            '[\n{"client": 1,\n "seconds_per_example": NaN,\n'
            ' "download_kbit_s": 1, "upload_kbit_s": 1}]',
            "line 3, field seconds_per_example: nan must be",
        ),
        ("[" + GOOD.replace("}", ', "client": 2}') + "]", "field client is there twice"),
        ('[{"client": 1,]', "line 1: "),
        ("[" + GOOD.replace("}", ', "available": 5}') + "]", "field available: 5 is no list"),
        ("[" + GOOD.replace("}", ', "available": [[1]]}') + "]", "field available: .*from when"),
        (f"[{GOOD},,]", "line 1: "),
        ("[" * 100_000, "line 1: it is nested too deep"),
        ("[" + GOOD.replace('"client": 1', '"client": " "') + "]", "' ' is no client's key"),
        (
            "[" + GOOD.replace('"upload_kbit_s": 1', '"upload_kbit_s": 1' + "0" * 400) + "]",
            "field upload_kbit_s: the number has too many digits",
        ),
        (
            "[" + GOOD.replace("}", ', "available": [[0, 1' + "0" * 400 + "]]}") + "]",
            "field available: a time has too many digits",
        ),
    ],
)
def test_bad_json(tmp_path, text, words):
    with pytest.raises(ValueError, match=words):
        read_devices(json_of(tmp_path, text))


def test_what_cannot_be_read_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"nowhere\.csv cannot be read: No such file"):
        as_fleet(tmp_path / "nowhere.csv")
    path = tmp_path / "devices.csv"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="no UTF-8 text"):
        as_fleet(str(path))
    with pytest.raises(ValueError, match=r"devices\.txt.*must be one of phones"):
        as_fleet("devices.txt")


def test_client_without_a_line_is_named_with_the_file(tmp_path):
    fleet = as_fleet(csv_of(tmp_path, "0,1,1,1"))
    with pytest.raises(ValueError, match=r"client '5' is not among the devices of devices\.csv"):
        fleet.device("5")


def test_a_mark_at_the_beginning_and_windows_line_ends_are_no_obstacle(tmp_path):
    path = tmp_path / "devices.csv"
    path.write_bytes(f"\ufeff{NAMES}\r\n0,1,1,1\r\n".encode())
    assert list(read_devices(path)) == ["0"]
