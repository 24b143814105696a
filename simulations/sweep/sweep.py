"""A sweep of runs: every rule in every setting with every seed."""

from collections.abc import Mapping, Sequence
from dataclasses import field, fields, replace
from difflib import get_close_matches
from functools import cached_property
from itertools import product
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    TypeAdapter,
)
from pydantic.dataclasses import dataclass as checked_dataclass

from ..config import Config, Scalar, default_run_config, merged, parse_rule
from ..validation import Count
from .cell import Cell, readable_name
from .plan import CHECKED, Report

__all__ = ["ALL_CLIENTS", "PARAMETER", "Sweep", "Tune", "read_parameters", "refuse_axes", "short"]

ALL_CLIENTS = "all"
"""The rule that has every client send its update: the ceiling."""

# How many layers are trained: of VGG16 the last, and of what is trained from scratch, all.
_LAYERS: dict[tuple[str, int], dict[str, Scalar]] = {
    ("vgg16", 1): {"model": "vgg16", "trainable-layers": "classifier.6"},
    ("vgg16", 2): {"model": "vgg16", "trainable-layers": "classifier.3,classifier.6"},
    ("scratch", 1): {"model": "linear"},
    ("scratch", 2): {"model": "mlp"},
}
# Of these a label would say otherwise, or a cell, which leaves one file, has no use for them.
_SINGLE = "is for a single run (pncs run --set): leave it out of a sweep"
_REFUSED = {
    "strategy": "is an axis of a sweep: use rules",
    "num-selected": "is an axis of a sweep: use selected",
    "partition": "is an axis of a sweep: use shards or dirichlet",
    "shards-per-client": "is an axis of a sweep: use shards",
    "dirichlet-alpha": "is an axis of a sweep: use dirichlet",
    "seed": "is an axis of a sweep: use seeds",
    "output-dir": _SINGLE,
    "tensorboard": _SINGLE,
    "checkpoint": _SINGLE,
    "resume": _SINGLE,
}
_THE_SAME = ("num-rounds", "dataset", "data-dir", "evaluate-on", "model", "trainable-layers")
T = TypeVar("T")
PARAMETER = "rule."
"""What the name of a parameter of rules begins with."""

_LONGEST_NAME = 200  # of 255 bytes that a file name may have, with what comes after it


def _label(text: str) -> str:
    if not text or not text.isprintable():
        raise ValueError(f"{text!r} cannot be a title or a rule: it must be printable text")
    return text


def _different(values: tuple[T, ...]) -> tuple[T, ...]:
    if len(set(values)) < len(values):
        raise ValueError("must be a list of different values")
    return values


Label = Annotated[StrictStr, AfterValidator(_label)]
Rate = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]
Axis = Annotated[tuple[T, ...], Field(min_length=1), AfterValidator(_different)]
Axes = Mapping[str, Axis[StrictBool | StrictInt | StrictFloat | StrictStr]]


def short(value: Scalar) -> str:
    """Return a value as TOML has it, a number in few digits if these say all of it."""
    if not isinstance(value, float):
        return str(value).lower() if isinstance(value, bool) else str(value)
    text = f"{value:g}"
    return text if float(text) == value else repr(value)


def read_parameters(axes: Mapping[str, Any]) -> Axes:
    """Return the values of each ``rule.KEY`` by KEY, checked."""
    found = TypeAdapter(Axes).validate_python(axes)
    return {key.removeprefix(PARAMETER): values for key, values in found.items()}


@checked_dataclass(frozen=True, config=CHECKED)
class Tune:
    """Learning rates, of which each rule has the best in each panel, and the runs for each."""

    lr: Axis[Rate]
    seeds: Count


@checked_dataclass(frozen=True, config=CHECKED)
class Sweep:
    """The product of rules, axes and seeds.

    ``rules`` are names of the app's strategies, ``"all"`` for every client, or labels of ``rule``,
    the settings of one rule alone, which then name their ``strategy``. ``parameters`` are the axes
    ``"rule.KEY"``, for the rules that have KEY. ``quick`` has what a quick version replaces: keys
    of the sweep, and settings. docs/sweeps.md says what the others are.
    """

    title: Label
    rules: Axis[Label]
    clients: Count = 10
    shards: Annotated[tuple[StrictInt, ...], AfterValidator(_different)] = (2,)
    dirichlet: Annotated[tuple[StrictFloat, ...], AfterValidator(_different)] = ()
    layers: Axis[Literal[1, 2]] = (1,)
    selected: Axis[StrictInt] = (2,)
    queue: Axis[StrictInt] = (-1,)
    parameters: Axes = field(default_factory=dict, metadata={"key": False})
    seeds: Count = 10
    model: Literal["vgg16", "scratch"] = "scratch"
    settings: Mapping[str, Any] = field(default_factory=dict)
    rule: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    tune: Annotated[Tune | None, BeforeValidator(lambda table: table or None)] = None
    quick: Mapping[str, Any] = field(default_factory=dict)
    report: Report = field(default_factory=Report)

    def __post_init__(self) -> None:
        for many in self.selected:
            if many > self.clients:
                raise ValueError(f"selected = {many} is more than clients = {self.clients}")
        if not self._partitions():
            raise ValueError("shards and dirichlet are both empty: give at least one partition")
        self._check_settings()
        cells = self.cells()
        _check_names(cells)
        lines = list(dict.fromkeys(cell.line for cell in cells))
        reference = self.reference
        compared = [line for claim in self.report.claims for line in claim.against]
        if reference in compared:
            raise ValueError(f"report: a claim holds the reference {reference!r} against itself")
        for line in (reference, *compared):
            if line not in lines:
                raise ValueError(f"report: there is no {line!r}, only {', '.join(lines)}")

    def _check_settings(self) -> None:
        """Refuse settings that are an axis, or that leave nothing to compare."""
        more = {"queue-length": "is an axis of a sweep: use queue"} if len(self.queue) > 1 else {}
        refuse_axes(self.settings, more)
        for rule, own in self.rule.items():
            if rule not in self.rules:
                raise ValueError(
                    f"[rule.{rule}] is for a rule that is not among {', '.join(self.rules)}"
                )
            for key in _THE_SAME:
                if key in own:
                    raise ValueError(
                        f"[rule.{rule}] {key} = {own[key]}: runs of which it is not the same "
                        "cannot be compared, so put it into [settings]"
                    )
            refuse_axes({key: value for key, value in own.items() if key != "strategy"}, more)
        for own in (self.settings, *self.rule.values()):
            if self.tune and "lr" in own:
                raise ValueError(
                    f"lr = {own['lr']} beside tune, which chooses lr: have one of them"
                )
            for key, value in _parameters(own).items():
                if key in self.parameters:
                    raise ValueError(
                        f"rule.{key} = {value} is an axis of this sweep: leave it out of the "
                        "settings, or give its values there alone"
                    )

    def check_parameters(self) -> None:
        """Refuse a ``rule.KEY`` that no rule has, which is for a part of a sweep to leave out."""
        there = {key for names in self._known.values() for key in names}
        for key in (*self.parameters, *self._shared):
            if key not in there:
                near = get_close_matches(key, there, n=1)
                has = (
                    f"{rule} has {', '.join(own) or 'none'}" for rule, own in self._known.items()
                )
                hint = f"did you mean rule.{near[0]}?" if near else "; ".join(has)
                raise ValueError(f"rule.{key}: no rule of the sweep has this parameter: {hint}")

    @property
    def left_out(self) -> dict[str, list[str]]:
        """The ``rule.KEY`` of the settings that some rules have not, and these, run without it."""
        lacking = {
            f"rule.{key}": [rule for rule, own in self._known.items() if key not in own]
            for key in self._shared
        }
        return {key: rules for key, rules in lacking.items() if rules}

    @cached_property
    def _shared(self) -> dict[str, Any]:
        """The parameters that the settings give to all rules which have them."""
        return _parameters(self.settings)

    @cached_property
    def _known(self) -> dict[str, list[str]]:
        """The parameters that each rule has; none where they do not matter."""
        if not self.parameters and not self._shared:
            return {rule: [] for rule in self.rules}
        from ..run.strategy import parameter_names  # takes a second, and many sweeps have none

        defaults = default_run_config()
        known = {}
        for rule in self.rules:
            strategy = {"strategy": "uniform" if rule == ALL_CLIENTS else rule}
            own = merged(defaults, strategy, self.rule.get(rule, {}))
            known[rule] = parameter_names(Config.from_run_config(own))
        return known

    @property
    def reference(self) -> str:
        """The line that every other is tested against, whether or not it comes to a result."""
        return self.report.reference or next(iter(self._lines(self.rules[0], self.queue[0])))

    def cells(self) -> list[Cell]:
        """Return all runs, seed by seed, so that what is there first is comparable."""
        result = []
        defaults = default_run_config()
        lines = {(rule, q): self._lines(rule, q) for q in self.queue for rule in self.rules}
        plain = {k: v for k, v in self.settings.items() if k.partition(".")[0] != "rule"}
        for seed, (partition, split), layers, selected, (rule, queue) in product(
            range(self.seeds), self._partitions().items(), self.layers, self.selected, lines
        ):
            everybody = rule == ALL_CLIENTS
            common: dict[str, Any] = {
                **_LAYERS[self.model, layers],
                "strategy": "uniform" if everybody else rule,
                **split,
                "num-selected": self.clients if everybody else selected,
                "queue-length": 0 if everybody else queue,
                "seed": seed,
            }
            for line, values in lines[rule, queue].items():
                shared = {k: v for k, v in self._shared.items() if k in self._known[rule]}
                own = self.rule.get(rule, {})
                settings = merged(defaults, common, plain, {"rule": shared}, own, {"rule": values})
                _check_network(settings, _LAYERS[self.model, layers])
                panel = f"{partition}, layers {layers}, selected {selected}"
                cell = Cell(panel, line, rule, seed, self.clients, settings)
                _ = cell.config  # what is wrong is said before anything runs
                result.append(cell)
        return result

    def quickened(self) -> "Sweep":
        """Return the quick version."""
        for key in ("title", "quick", "report"):
            if key in self.quick:
                raise ValueError(f"[quick] cannot replace {key}")
        if "settings" in self.quick:
            raise ValueError("[quick.settings]: settings stand in [quick] itself")
        own = {f.name for f in fields(self) if f.metadata.get("key", True)}
        axes = {f"rule.{key}" for key in self.parameters}
        keys = {key: value for key, value in self.quick.items() if key in own}
        values = {key: value for key, value in self.quick.items() if key in axes}
        settings = {k: v for k, v in self.quick.items() if k not in own | axes}
        return replace(
            self,
            **keys,
            parameters={**self.parameters, **read_parameters(values)},
            title=f"{self.title}; quick",
            settings={**self.settings, **settings},
            quick={},
        )

    def _lines(self, rule: str, queue: int) -> dict[str, dict[str, Any]]:
        """Return the parameters of each line of a rule with a length of the queue."""
        if rule == ALL_CLIENTS:  # nobody is left to rest: no length of the queue is theirs
            return {rule: {}} if queue == self.queue[0] else {}
        name = rule if len(self.queue) == 1 else f"{rule} L={queue}"
        axes = {key: those for key, those in self.parameters.items() if key in self._known[rule]}
        lines = {}
        for values in product(*axes.values()):
            own = dict(zip(axes, values, strict=True))
            lines[" ".join([name, *(f"{k}={short(v)}" for k, v in own.items())])] = own
        return lines

    def _partitions(self) -> dict[str, dict[str, Scalar]]:
        """Return how the data is divided, by what a panel says of it."""
        by_shards: dict[str, dict[str, Scalar]] = {
            f"shards {n}": {"partition": "shards", "shards-per-client": n} for n in self.shards
        }
        return by_shards | {
            f"dirichlet {short(alpha)}": {"partition": "dirichlet", "dirichlet-alpha": float(alpha)}
            for alpha in self.dirichlet
        }


def _parameters(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of rules among settings, by KEY, however they are written."""
    return parse_rule(merged(settings).get("rule", ""))


def refuse_axes(settings: Mapping[str, Scalar], more: Mapping[str, str] | None = None) -> None:
    """Refuse settings of which a label would say otherwise, or that are of no use in a sweep."""
    for key, why in {**_REFUSED, **(more or {})}.items():
        if key in settings:
            raise ValueError(f"the setting {key} = {settings[key]} {why}")


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
