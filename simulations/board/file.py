"""A board's TOML file, and the sweep that each of its settings becomes."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import field, fields, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, StrictBool, StrictFloat, StrictInt, TypeAdapter
from pydantic.dataclasses import dataclass

from ..config import Scalar
from ..sweep.file import changed
from ..sweep.plan import CHECKED, Report
from ..sweep.sweep import Axis, Sweep, Tune, network_keys
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

    def sweep(self, key: str) -> Sweep:
        """Return the sweep of a setting."""
        own = self.setting[key]
        network = network_keys({"model": own.model}) or {"settings": {"model": own.model}}
        settings = {**self.settings, **network.pop("settings", {}), **own.settings}
        with in_plain_words(f"setting.{key}: ", Sweep):
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
        board = TypeAdapter(Board).validate_python(read_toml(path))
        for key in board.setting:
            board.sweep(key)
    with in_plain_words(f"{path}: quick: ", Setting):
        quick = board.quickened()
        for key in quick.setting:
            quick.sweep(key)
    return board


def sweeps_of(
    board: Board,
    only: Sequence[str] = (),
    keys: Mapping[str, Any] | None = None,
    settings: Mapping[str, Scalar] | None = None,
) -> dict[str, Sweep]:
    """Return what a command asks for: the sweeps of all settings or some, or parts of them."""
    wanted, parts = list(board.setting), []
    for text in only:
        axis, _, values = (part.strip() for part in text.partition("="))
        if axis != _ONLY:
            parts.append(text)
            continue
        wanted = [value.strip() for value in values.split(",")]
        if unknown := [key for key in wanted if key not in board.setting]:
            raise ValueError(
                f"--only {text}: there is no setting {unknown[0]!r}, only "
                f"{', '.join(board.setting)}"
            )
    return {
        key: changed(board.sweep(key), False, parts, keys or {}, settings or {}) for key in wanted
    }


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
