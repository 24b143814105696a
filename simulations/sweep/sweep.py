"""A sweep of runs: every rule in every setting with every seed."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from hashlib import blake2b
from itertools import product
from math import isfinite
from typing import Any

from ..config import Config, Scalar, default_run_config, format_toml
from .plan import Report

__all__ = [
    "ALL_CLIENTS",
    "PLACES",
    "Cell",
    "Sweep",
    "readable_name",
    "refuse_axes",
    "short",
    "tupled",
]

ALL_CLIENTS = "all"
"""The rule that has every client send its update: the ceiling."""

# How many layers are trained: of VGG16 the last, and of what is trained from scratch, all.
_LAYERS: dict[tuple[str, int], dict[str, Scalar]] = {
    ("vgg16", 1): {"model": "vgg16", "trainable-layers": "classifier.6"},
    ("vgg16", 2): {"model": "vgg16", "trainable-layers": "classifier.3,classifier.6"},
    ("scratch", 1): {"model": "linear"},
    ("scratch", 2): {"model": "mlp"},
}
_MODELS = ("vgg16", "scratch")
# The settings that an axis has the say in, so that no label of a report is false.
_OF_AXES = {
    "strategy": "rules",
    "num-selected": "selected",
    "partition": "shards or dirichlet",
    "shards-per-client": "shards",
    "dirichlet-alpha": "dirichlet",
    "seed": "seeds",
}
_AXES = ("layers", "selected", "queue")
# A cell leaves one file, and is run again from its start.
_OF_SINGLE_RUNS = ("output-dir", "tensorboard", "checkpoint", "resume")
_THE_SAME = ("num-rounds", "dataset", "data-dir", "evaluate-on", "model", "trainable-layers")
_LONGEST_NAME = 200  # of 255 bytes that a file name may have, with what comes after it
PLACES = (
    "output-dir",
    "data-dir",
    "cache-dir",
    "weights",
    "device",
    "tensorboard",
    "checkpoint",
    "resume",
)
"""Settings that say where something is or computes, and change no result."""


@dataclass(frozen=True)
class Cell:
    """One run of a sweep.

    Attributes
    ----------
    panel : str
        What it shares with the runs it is compared with, such as ``"shards 2, selected 4"``.
    line : str
        What a report calls it: the rule, and the queue length where the sweep has more than one.
    rule : str
        The rule by the sweep's name for it; ``"all"`` for the ceiling, and for nothing else.
    seed : int
        The seed of everything random.
    clients : int
        How many clients there are.
    settings : mapping of str to scalar
        Every setting of the app.
    """

    panel: str
    line: str
    rule: str
    seed: int
    clients: int
    settings: Mapping[str, Scalar]

    @property
    def config(self) -> Config:
        """The settings, checked."""
        return Config.from_run_config(self.settings)

    @property
    def command(self) -> str:
        """The command that runs this cell alone."""
        defaults = default_run_config()
        changed = [
            f"--set {shlex.quote(f'{key}={value}')}"
            for key, value in self.settings.items()
            if value != defaults[key] and key != "output-dir"
        ]
        return " ".join([f"pncs run --engine in-process --clients {self.clients}", *changed])

    def name(self, files: str) -> str:
        """Return a name for its file, that depends on whatever its result depends on.

        Parameters
        ----------
        files : str
            Fingerprint of the data and the weights.
        """
        values = {k: v for k, v in self.settings.items() if k not in PLACES}
        if not values.get("stop-after"):
            values.pop("stop-after", None)  # the names of before there was such a setting
        text = f"{self.clients}\n{format_toml(values)}{files}"
        digest = blake2b(text.encode(), digest_size=6).hexdigest()
        return f"{readable_name(self.panel, self.line, self.seed)}-{digest}"


def short(number: float) -> str:
    """Return a number in few digits if these say all of it."""
    text = f"{number:g}"
    return text if float(text) == number else repr(float(number))


def readable_name(panel: str, line: str, seed: int) -> str:
    """Return what a cell's name begins with."""
    readable = f"{panel}-{line}-{seed}".replace(", ", "-").replace(" ", "")
    return "".join(c if c.isalnum() or c in "-." else "_" for c in readable)


@dataclass(frozen=True)
class Sweep:
    """A sweep: the product of rules, axes and seeds.

    Attributes
    ----------
    title : str
        What is shown, and where it is from.
    rules : tuple of str
        Selection rules by the names of the app, and ``"all"`` for every client.
    clients : int
        How many clients there are.
    shards : tuple of int
        Label shards per client.
    dirichlet : tuple of float
        Concentrations of Dirichlet partitions, besides those by shards.
    layers : tuple of int
        How many layers are trained, 1 or 2.
    selected : tuple of int
        Clients per round that send their update.
    queue : tuple of int
        Lengths of the Age-of-Update queue; -1 for each rule's own.
    seeds : int
        How many seeds, from 0.
    model : {"vgg16", "scratch"}
        Frozen pre-trained layers below those that are trained, or nothing.
    settings : mapping of str to scalar
        Other settings of the app, for all cells.
    rule : mapping of str to mapping
        Settings of one rule. With the setting ``strategy`` the rule's own name is a label, so that
        a sweep may have one strategy twice.
    tune : mapping
        ``lr``, learning rates of which each rule has the best in each panel, and ``seeds``, how
        many runs judge each; see `tuning.choose_rates`. Empty: ``lr`` is that of the settings.
    quick : mapping
        What a quick version replaces: keys of the sweep, and settings.
    report : Report
        What the report shows.
    """

    title: str
    rules: tuple[str, ...]
    clients: int = 10
    shards: tuple[int, ...] = (2,)
    dirichlet: tuple[float, ...] = ()
    layers: tuple[int, ...] = (1,)
    selected: tuple[int, ...] = (2,)
    queue: tuple[int, ...] = (-1,)
    seeds: int = 10
    model: str = "scratch"
    settings: Mapping[str, Scalar] = field(default_factory=dict)
    rule: Mapping[str, Mapping[str, Scalar]] = field(default_factory=dict)
    tune: Mapping[str, Any] = field(default_factory=dict)
    quick: Mapping[str, Any] = field(default_factory=dict)
    report: Report = field(default_factory=Report)

    def __post_init__(self) -> None:
        for name, count in (("seeds", self.seeds), ("clients", self.clients)):
            if count < 1:
                raise ValueError(f"{name} = {count} must be at least 1")
        for many in self.selected:
            if many > self.clients:
                raise ValueError(f"selected = {many} is more than clients = {self.clients}")
        for text in (self.title, *self.rules):
            if not text or not text.isprintable():
                raise ValueError(f"{text!r} cannot be a title or a rule: it must be printable text")
        if self.model not in _MODELS:
            raise ValueError(f"model = {self.model!r} must be one of {', '.join(_MODELS)}")
        for name in ("rules", "shards", "dirichlet", *_AXES):
            values = getattr(self, name)
            empty = not values and name not in ("shards", "dirichlet")
            if empty or len(set(values)) < len(values):
                raise ValueError(f"{name} = {list(values)} must be a list of different values")
        if not self._partitions():
            raise ValueError("shards and dirichlet are both empty: give at least one partition")
        for layers in self.layers:
            if layers not in (1, 2):
                raise ValueError(f"layers = {layers} must be 1 or 2")
        for rule in self.rule:
            if rule not in self.rules:
                raise ValueError(
                    f"[rule.{rule}] is for a rule that is not among {', '.join(self.rules)}"
                )
        more = {"queue-length": "queue"} if len(self.queue) > 1 else {}
        refuse_axes(self.settings, more)
        _check_tuning(self.tune)
        for rule, own in self.rule.items():
            for key in _THE_SAME:
                if key in own:
                    raise ValueError(
                        f"[rule.{rule}] {key} = {own[key]}: runs of which it is not the same "
                        "cannot be compared, so put it into [settings]"
                    )
        for own in (self.settings, *self.rule.values()):
            refuse_axes({key: value for key, value in own.items() if key != "strategy"}, more)
            if self.tune and "lr" in own:
                raise ValueError(
                    f"lr = {own['lr']} beside tune, which chooses lr: have one of them"
                )
        cells = self.cells()
        _check_names(cells)
        lines = list(dict.fromkeys(cell.line for cell in cells))
        reference = self.reference
        compared = [line for claim in self.report.claims for line in claim["against"]]
        if reference in compared:
            raise ValueError(f"report: a claim holds the reference {reference!r} against itself")
        for line in (reference, *compared):
            if line not in lines:
                raise ValueError(f"report: there is no {line!r}, only {', '.join(lines)}")

    @property
    def reference(self) -> str:
        """The line that every other is tested against, whether or not it comes to a result."""
        return self.report.reference or self._line(self.rules[0], self.queue[0])

    def cells(self) -> list[Cell]:
        """Return all runs, seed by seed, so that what is there first is comparable.

        Raises
        ------
        ValueError
            If a setting of a cell is unknown or wrong.
        """
        result = []
        defaults = default_run_config()
        for seed, (partition, split), layers, selected, queue, rule in product(
            range(self.seeds),
            self._partitions().items(),
            self.layers,
            self.selected,
            self.queue,
            self.rules,
        ):
            if rule == ALL_CLIENTS and queue != self.queue[0]:
                continue  # nobody is left to rest
            settings = defaults | {
                **_LAYERS[self.model, layers],
                "strategy": "uniform" if rule == ALL_CLIENTS else rule,
                **split,
                "num-selected": self.clients if rule == ALL_CLIENTS else selected,
                "queue-length": 0 if rule == ALL_CLIENTS else queue,
                "seed": seed,
                **self.settings,
                **self.rule.get(rule, {}),
            }
            _check_network(settings, _LAYERS[self.model, layers])
            cell = Cell(
                panel=f"{partition}, layers {layers}, selected {selected}",
                line=self._line(rule, queue),
                rule=rule,
                seed=seed,
                clients=self.clients,
                settings=settings,
            )
            _ = cell.config  # what is wrong is said before anything runs
            result.append(cell)
        return result

    def quickened(self) -> "Sweep":
        """Return the quick version."""
        own = {f.name for f in fields(self)}
        keys = {key: tupled(value) for key, value in self.quick.items() if key in own}
        settings = {key: value for key, value in self.quick.items() if key not in own}
        settings = {**self.settings, **settings}
        return replace(self, **keys, title=f"{self.title}; quick", settings=settings, quick={})

    def _line(self, rule: str, queue: int) -> str:
        # Of all clients nobody is left to rest: no length of the queue is theirs.
        return rule if len(self.queue) == 1 or rule == ALL_CLIENTS else f"{rule} L={queue}"

    def _partitions(self) -> dict[str, dict[str, Scalar]]:
        """Return how the data is divided, by what a panel says of it."""
        by_shards: dict[str, dict[str, Scalar]] = {
            f"shards {n}": {"partition": "shards", "shards-per-client": n} for n in self.shards
        }
        return by_shards | {
            f"dirichlet {short(alpha)}": {"partition": "dirichlet", "dirichlet-alpha": float(alpha)}
            for alpha in self.dirichlet
        }


def refuse_axes(settings: Mapping[str, Scalar], more: Mapping[str, str] | None = None) -> None:
    """Refuse settings that are an axis of the sweep, or of no use in one.

    A setting that is an axis would make every label say otherwise.

    Parameters
    ----------
    settings : mapping of str to scalar
        Settings for all runs, or for those of a rule.
    more : mapping of str to str, optional (default: None)
        Further settings that are an axis, with the axis.

    Raises
    ------
    ValueError
        If there is one; names the axis.
    """
    for key, axis in {**_OF_AXES, **(more or {})}.items():
        if key in settings:
            raise ValueError(
                f"the setting {key} = {settings[key]} is an axis of a sweep: use {axis}"
            )
    for key in _OF_SINGLE_RUNS:
        if key in settings:
            raise ValueError(
                f"the setting {key} = {settings[key]} is for a single run (pncs run --set): leave "
                "it out of a sweep"
            )


def _check_tuning(tune: Mapping[str, Any]) -> None:
    if not tune:
        return
    rates, seeds = tune.get("lr"), tune.get("seeds")
    good_rates = isinstance(rates, list | tuple) and all(
        isinstance(rate, int | float) and type(rate) is not bool and rate > 0 and isfinite(rate)
        for rate in rates
    )
    if set(tune) != {"lr", "seeds"} or not rates or not good_rates or type(seeds) is not int:
        raise ValueError(f"tune = {dict(tune)} must be like {{lr = [0.01, 0.1], seeds = 2}}")
    if len(set(rates)) < len(rates):
        raise ValueError(f"tune: lr = {list(rates)} must be different rates")
    if seeds < 1:
        raise ValueError(f"tune: seeds = {seeds} must be at least 1")


def _check_network(settings: Mapping[str, Scalar], own: Mapping[str, Scalar]) -> None:
    """Refuse settings of a network that another layer count or model of sweeps stands for."""
    for (model, layers), network in _LAYERS.items():
        if network != own and all(settings[key] == value for key, value in network.items()):
            raise ValueError(
                f"the setting model = {settings['model']} is what the sweep's keys model = "
                f"{model!r} and layers = [{layers}] stand for: use these"
            )


def _check_names(cells: Sequence[Cell]) -> None:
    """Refuse labels of which files could not be named, or two runs would have one name."""
    seen: dict[str, str] = {}
    for cell in cells:
        name = readable_name(cell.panel, cell.line, cell.seed)
        if seen.setdefault(name, cell.line) != cell.line:
            raise ValueError(
                f"the rules {seen[name]!r} and {cell.line!r} differ in no letter or digit, so that "
                "their files would have the same name: rename one"
            )
        if len(name.encode()) > _LONGEST_NAME:
            raise ValueError(
                f"the rule {cell.line[:40]!r}... has too long a name: a file would be called by "
                f"{len(name.encode())} bytes, and may be by {_LONGEST_NAME}"
            )


def tupled(value: Any) -> Any:
    """Return a list of TOML as a sweep has it, and anything else as it is."""
    return tuple(value) if isinstance(value, list) else value
