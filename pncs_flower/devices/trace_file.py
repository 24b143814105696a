"""Devices from a file, CSV or JSON: each error names the file, the line and the field."""

import csv
import io
import json
import math
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from .availability import Always, Availability, Trace
from .device import Device

NEEDED = ("client", "seconds_per_example", "download_kbit_s", "upload_kbit_s")
OPTIONAL = ("latency_s", "dropout", "available", "repeat_s")
_FIELDS = NEEDED + OPTIONAL
_LEAST, _MOST = 1e-12, 1e12  # within the limits of a device, whatever the unit

Row = tuple[int, dict[str, Any], dict[str, int]]  # its line, its fields, and the lines of these


def read_devices(path: str | Path) -> dict[str, Device]:
    """Read the device of each client from a file, ``.csv`` or ``.json``.

    A CSV file has a line of names and then a line for each client; a JSON file a list of objects.
    The names: ``client`` (its key), ``seconds_per_example`` (to train on), ``download_kbit_s``,
    ``upload_kbit_s``, and, where wanted, ``latency_s``, ``dropout`` (a probability), ``available``
    (seconds from when to when: ``0-3600 7200-9000`` in CSV, ``[[0, 3600], [7200, 9000]]`` in JSON;
    none: always) and ``repeat_s`` (seconds after which these times begin again).

    Raises
    ------
    ValueError
        If the file cannot be read, or for the first thing in it that cannot be, with its line.
    """
    path = Path(path).expanduser()
    if path.suffix.lower() not in (".csv", ".json"):
        raise ValueError(f"devices are read from a .csv or .json file, not from {str(path)!r}")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ValueError(f"the devices' file {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"the devices' file {path} is no UTF-8 text: {error.reason}") from None
    rows = _csv_rows if path.suffix.lower() == ".csv" else _json_rows
    devices: dict[str, Device] = {}
    lines: dict[str, int] = {}
    for line, fields, lines_of in rows(path, text):
        reader = _Reader(path, line, fields, lines_of)
        client = reader.client()
        if client in devices:
            raise reader.error("client", f"{client!r} is there already, on line {lines[client]}")
        devices[client], lines[client] = reader.device(), line
    if not devices:
        raise ValueError(f"{path} holds no device: it needs a line for each client")
    return devices


class _Reader:
    """One client's fields."""

    def __init__(self, path: Path, line: int, fields: dict[str, Any], of: dict[str, int]) -> None:
        self._path, self._line, self._fields, self._lines = path, line, fields, of
        for name in fields:
            if name not in _FIELDS:
                raise self.error(name, _unknown(name))
        for name in NEEDED:
            if fields.get(name) in (None, ""):
                raise self.error(name, "is missing")

    def error(self, field: str, what: str) -> ValueError:
        """Return the error for a field."""
        line = self._lines.get(field, self._line)
        return ValueError(f"{self._path}, line {line}, field {field}: {what}")

    def client(self) -> str:
        """Return the client's key."""
        key = self._fields["client"]
        if isinstance(key, bool) or not isinstance(key, int | str) or not str(key).strip():
            raise self.error("client", f"{key!r} is no client's key: give text or a whole number")
        return str(key).strip()

    def number(self, field: str, default: float | None = None, *, zero: bool = False) -> float:
        """Return a number that is finite and above 0, or at least 0."""
        value = self._fields.get(field)
        if value in (None, "") and default is not None:
            return default
        try:
            number = math.nan if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            raise self.error(field, f"{value!r} is no number") from None
        except OverflowError:
            raise self.error(field, "the number has too many digits") from None
        if not math.isfinite(number) or number < 0 or (number == 0 and not zero):
            words = "at least" if zero else "above"
            raise self.error(field, f"{value!r} must be a finite number {words} 0")
        if number > _MOST or 0 < number < _LEAST:
            raise self.error(field, f"{value!r} must be from {_LEAST:g} to {_MOST:g}")
        return number

    def device(self) -> Device:
        """Return the client's device."""
        dropout = self.number("dropout", 0.0, zero=True)
        if dropout > 1:
            raise self.error("dropout", f"{dropout:g} must be a probability, at most 1")
        return Device(
            examples_per_second=1 / self.number("seconds_per_example"),
            download=1000 * self.number("download_kbit_s"),
            upload=1000 * self.number("upload_kbit_s"),
            latency=self.number("latency_s", 0.0, zero=True),
            availability=self._availability(),
            dropout=dropout,
        )

    def _availability(self) -> Availability:
        given = self._fields.get("available")
        repeat = self.number("repeat_s", 0.0, zero=True)
        if given in (None, "", []):
            if repeat:
                raise self.error("repeat_s", "there are no times of being available to repeat")
            return Always()
        try:
            intervals = tuple(_interval(pair) for pair in _pairs(given))
            return Trace(intervals, repeat or None)
        except (TypeError, ValueError) as error:
            raise self.error("available", str(error)) from None


def _pairs(given: object) -> list[Any]:
    if isinstance(given, str):
        return [pair.split("-") for pair in given.replace(";", " ").split()]
    if not isinstance(given, list):
        raise ValueError(f"{given!r} is no list of times, such as [[0, 3600], [7200, 9000]]")
    return given


def _interval(pair: object) -> tuple[float, float]:
    if not isinstance(pair, list) or len(pair) != 2:
        raise ValueError(f"{pair!r} is not from when to when, two numbers of seconds")
    try:
        on, off = (math.nan if isinstance(each, bool) else float(each) for each in pair)
    except OverflowError:
        raise ValueError("a time has too many digits") from None
    except (TypeError, ValueError):
        raise ValueError(f"{pair!r} is not from when to when, two numbers of seconds") from None
    return on, off


def _unknown(name: str) -> str:
    near = get_close_matches(name, _FIELDS, n=1)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(_FIELDS)}"
    return f"there is no field of this name: {hint}"


def _csv_rows(path: Path, text: str) -> Iterator[Row]:
    """Yield the rows of a CSV file, whose first line has the names."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    names: list[str] = []
    try:
        for cells in reader:
            if not any(cell.strip() for cell in cells):
                continue
            line = reader.line_num
            if not names:
                names = [cell.strip() for cell in cells]
                _check_names(path, line, names)
                continue
            if len(cells) != len(names):
                raise ValueError(
                    f"{path}, line {line}: it has {len(cells)} fields, but the first line names "
                    f"{len(names)}: {', '.join(names)}"
                )
            values = (cell.strip() for cell in cells)
            yield line, dict(zip(names, values, strict=True)), {}
    except csv.Error as error:
        raise ValueError(f"{path}, line {reader.line_num}: {error}") from None


def _check_names(path: Path, line: int, names: list[str]) -> None:
    for name in names:
        if name not in _FIELDS:
            raise ValueError(f"{path}, line {line}, field {name}: {_unknown(name)}")
        if names.count(name) > 1:
            raise ValueError(f"{path}, line {line}, field {name}: it is there twice")
    for name in NEEDED:
        if name not in names:
            raise ValueError(
                f"{path}, line {line}, field {name}: the column is missing; the first line names "
                f"the columns, {', '.join(NEEDED)} among them"
            )


def _json_rows(path: Path, text: str) -> Iterator[Row]:
    """Yield the objects of a JSON file's list, one after the other, to know their lines."""
    decoder = json.JSONDecoder(object_pairs_hook=_pairs_once)

    def skip(place: int, signs: str) -> int:
        while place < len(text) and text[place] in signs:
            place += 1
        return place

    def line_of(place: int) -> int:
        return text.count("\n", 0, place) + 1

    blank = " \t\r\n"
    place = skip(0, blank)
    if text[place : place + 1] != "[":
        raise ValueError(f"{path}, line {line_of(place)}: it must be a list, [...], of devices")
    place = skip(place + 1, blank)
    while text[place : place + 1] not in ("]", ""):
        try:
            found, end = decoder.raw_decode(text, place)
        except ValueError as error:
            line = line_of(place)
            if isinstance(error, json.JSONDecodeError):
                line, error = error.lineno, ValueError(error.msg)
            raise ValueError(f"{path}, line {line}: {error}") from None
        except RecursionError:
            raise ValueError(f"{path}, line {line_of(place)}: it is nested too deep") from None
        if not isinstance(found, Mapping):
            raise ValueError(f"{path}, line {line_of(place)}: {found!r} is no device, {{...}}")
        within = {name: text.find(json.dumps(name), place, end) for name in found}
        lines = {name: line_of(at) for name, at in within.items() if at >= 0}
        yield line_of(place), dict(found), lines
        place = skip(end, blank)
        if text[place : place + 1] not in (",", "]"):
            raise ValueError(f"{path}, line {line_of(place)}: a comma or the list's end is missing")
        if text[place] == ",":
            place = skip(place + 1, blank)
    if text[place : place + 1] != "]":
        raise ValueError(f"{path}, line {line_of(place)}: the list has no end")
    if (rest := skip(place + 1, blank)) < len(text):
        raise ValueError(f"{path}, line {line_of(rest)}: there is something after the list's end")


def _pairs_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"the field {name} is there twice in one device")
        found[name] = value
    return found
