"""A board's TOML file, and the sweep that each of its settings becomes."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import field, fields, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, StrictBool, StrictFloat, StrictInt, TypeAdapter
from pydantic.dataclasses import dataclass

from pncs_flower.plain_text import listed

from ..config import Scalar
from ..sweep.file import AXES, axis_of, changed, refuse_settings, values_of
from ..sweep.plan import CHECKED, Report
from ..sweep.sweep import Axis, Sweep, Tune, check_report, check_rules, network_keys
from ..toml_file import read_toml
from ..validation import Count, Label, Text, in_plain_words

_SHARE = re.compile(r"(\d+)% of clients")
_KEY = re.compile(r"[a-z0-9][a-z0-9-]*")
_ONLY = "setting"


def _for_folders(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    for key in settings:
        if not _KEY.fullmatch(key):
            raise ValueError(
                f"the setting {key!r} names a folder: it must be of small letters, digits and "
                "hyphens, and its name says the rest"
            )
    names = [each.name for each in settings.values()]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"two settings have the name {twice[0]!r}: rename one")
    return settings


@dataclass(frozen=True, config=CHECKED)
class See:
    """Where a reader finds more: a page of the documentation, and what it has."""

    page: Label
    text: Label


@dataclass(frozen=True, config=CHECKED)
class Setting:
    """A federation and its task; what a sweep would have as an axis has one value here."""

    name: Label
    clients: Count
    selected: Count
    about: Text = ""  # what it stands for, or why it is there
    shards: StrictInt | None = None
    dirichlet: StrictFloat | None = None
    natural: StrictBool = False
    iid: StrictBool = False
    model: Label = "linear"
    seeds: Count | None = None
    tune: Tune | None = None  # None: every rule has the settings' learning rate
    settings: Mapping[str, Any] = field(default_factory=dict)
    quick: Mapping[str, Any] = field(default_factory=dict)

    def quickened(self, quick: Mapping[str, Any]) -> "Setting":
        """Return the same with other keys, and other settings; its own go before those given."""
        keys = {each.name for each in fields(Setting)}
        given = {**quick, **self.quick}
        own = {key: value for key, value in given.items() if key in keys}
        for key in ("name", "settings", "quick"):
            if key in own:
                raise ValueError(f"quick cannot replace {key}: settings stand in quick itself")
        if "tune" in own:
            own["tune"] = own["tune"] or None
        rest = {key: value for key, value in given.items() if key not in keys}
        return replace(self, **own, settings={**self.settings, **rest}, quick={})


@dataclass(frozen=True, config=CHECKED)
class Board:
    """Rules and settings; docs/sweeps.md says what each key is."""

    title: Label
    rules: Axis[Label]
    setting: Annotated[Mapping[str, Setting], Field(min_length=1), AfterValidator(_for_folders)]
    seeds: Count = 3
    settings: Mapping[str, Any] = field(default_factory=dict)
    rule: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    quick: Mapping[str, Any] = field(default_factory=dict)
    report: Report = field(default_factory=Report)
    about: Text = ""
    see: tuple[See, ...] = ()

    def __post_init__(self) -> None:
        # Each setting's sweep would refuse them too, as if they were that setting's.
        check_rules(self.rules, self.rule)
        check_report(self.report, self.rules)

    def sweep(self, key: str) -> Sweep:
        """Return the sweep of a setting."""
        own = self.setting[key]
        network = network_keys({"model": own.model}) or {"settings": {"model": own.model}}
        settings = {**self.settings, **network.pop("settings", {}), **own.settings}
        with in_plain_words(kind=Sweep):
            sweep = Sweep(
                title=own.name,
                rules=self.rules,
                clients=own.clients,
                selected=(own.selected,),
                shards=() if own.shards is None else (own.shards,),
                dirichlet=() if own.dirichlet is None else (own.dirichlet,),
                natural=own.natural,
                iid=own.iid,
                seeds=own.seeds or self.seeds,
                tune=own.tune,
                settings=settings,
                rule={name: _of_clients(given, own.clients) for name, given in self.rule.items()},
                report=self.report,
                **network,
            )
            sweep.check_parameters()
            if len({cell.panel for cell in sweep.cells()}) > 1:
                raise ValueError(
                    "it has several partitions: give one of shards, dirichlet, natural and iid"
                )
        return sweep

    def quickened(self) -> "Board":
        """Return the quick version."""
        quick = {key: each.quickened(self.quick) for key, each in self.setting.items()}
        return replace(self, title=f"{self.title}; quick", setting=quick, quick={})


def is_board(path: Path) -> bool:
    """Tell whether a TOML file is a board, and no sweep."""
    return path.is_file() and _ONLY in read_toml(path)


def read_board(path: Path) -> Board:
    """Read a board's file; names it with what is unknown or wrong there."""
    with in_plain_words(f"{path}: ", Board):
        values = read_toml(path)
        refuse_settings(values, {each.name for each in fields(Board)})
        tables = values.get(_ONLY)
        for key, own in tables.items() if isinstance(tables, Mapping) else ():
            refuse_settings(own, {each.name for each in fields(Setting)}, f"{_ONLY}.{key}.")
        board = TypeAdapter(Board).validate_python(values)
        _check_settings(board)
    with in_plain_words(f"{path}: quick: ", Setting):
        _check_settings(board.quickened())
    return board


def sweeps_of(
    board: Board,
    only: Sequence[str] = (),
    keys: Mapping[str, Any] | None = None,
    settings: Mapping[str, Scalar] | None = None,
) -> dict[str, Sweep]:
    """Return what a command asks for: the sweeps of all settings or some, or parts of them."""
    wanted, parts = list[str](), list[str]()
    for text in only:
        if axis_of(text, (_ONLY, *AXES)) != _ONLY:
            parts.append(text)
            continue
        if wanted:
            raise ValueError(f"--only {_ONLY} is given twice: give all its values at once")
        wanted = values_of(text, board.setting)
        if not wanted:
            raise ValueError(f"--only {text}: the board has {listed(board.setting)}")
    return {
        key: changed(board.sweep(key), False, parts, keys or {}, settings or {})
        for key in wanted or board.setting
    }


def _check_settings(board: Board) -> None:
    """Refuse what is wrong in a setting, with its key unless it is wrong in all of them alike."""
    wrong: dict[str, str] = {}
    for key in board.setting:
        try:
            board.sweep(key)
        except ValueError as error:
            wrong[key] = str(error)
    if wrong:
        key, text = next(iter(wrong.items()))
        alike = len(board.setting) > 1 and [*wrong.values()] == [text] * len(board.setting)
        raise ValueError(text if alike else f"setting.{key}: {text}")


def _of_clients(settings: Mapping[str, Any], clients: int) -> dict[str, Any]:
    """Return settings of a rule, with ``"20% of clients"`` as the number that it is here."""
    found: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping):
            found[key] = _of_clients(value, clients)
        elif isinstance(value, str) and (share := _SHARE.fullmatch(value)):
            found[key] = max(1, round(int(share[1]) * clients / 100))
        else:
            found[key] = value
    return found
