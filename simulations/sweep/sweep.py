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
from pydantic.dataclasses import dataclass

from ..choices import CHOICES, Scalar, default_run_config, is_rule, nearest
from ..config import Config, check_parameters, merged, parse_rule
from ..parameters import declared_parameters
from ..validation import Count, Label, in_plain_words, within
from .cell import Cell, readable_name
from .plan import CHECKED, Report

ALL_CLIENTS = "all"
"""The rule that has every client send its update: the ceiling."""

PARAMETER = "rule."
"""What the settings and axes begin with that are parameters of rules."""

# How many layers are trained: of VGG16 the last, and of what is trained from scratch, all.
_LAYERS: dict[tuple[str, int], dict[str, Scalar]] = {
    ("vgg16", 1): {"model": "vgg16", "trainable-layers": "classifier.6"},
    ("vgg16", 2): {"model": "vgg16", "trainable-layers": "classifier.3,classifier.6"},
    ("scratch", 1): {"model": "linear"},
    ("scratch", 2): {"model": "mlp"},
}
# Of these a label would say otherwise, or a cell, which leaves one file, has no use for them.
_SINGLE = "is for a single run (pncs run --set): leave it out of a sweep"
REFUSED = {
    "strategy": "is an axis of a sweep: use rules in its file",
    "num-selected": "is an axis of a sweep: use selected in its file",
    "partition": "is an axis of a sweep: use shards, dirichlet, natural or iid in its file",
    "shards-per-client": "is an axis of a sweep: use shards in its file",
    "dirichlet-alpha": "is an axis of a sweep: use dirichlet in its file",
    "seed": "is an axis of a sweep: use seeds in its file, or --seeds",
    **dict.fromkeys(("output-dir", "tensorboard", "checkpoint", "resume"), _SINGLE),
}
REFUSED_OF_A_RULE = dict.fromkeys(
    (
        *("num-rounds", "dataset", "data-dir", "input-column", "label-column", "client-column"),
        *("image-size", "evaluate-on", "test-examples", "model", "trainable-layers"),
    ),
    "of one rule alone cannot be compared with the others: put it into [settings]",
)
_AXIS_TOO = "is an axis of this sweep: leave it out of the settings, or give its values there alone"
_LONGEST_LABEL = 150  # bytes of the 255 that a file's name may have
T = TypeVar("T")


def _different(values: tuple[T, ...]) -> tuple[T, ...]:
    if len(set(values)) < len(values):
        raise ValueError("must be a list of different values")
    return values


def _flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with each parameter of rules as ``rule.KEY``, however it is given."""
    parameters = parse_rule(merged(settings).get("rule", ""))
    plain = {key: value for key, value in settings.items() if key.partition(".")[0] != "rule"}
    return plain | {f"{PARAMETER}{key}": value for key, value in parameters.items()}


Rate = Annotated[StrictFloat, within(above=0)]
Different = Annotated[tuple[T, ...], AfterValidator(_different)]
Axis = Annotated[Different[T], Field(min_length=1)]
Axes = Mapping[str, Axis[StrictBool | StrictInt | StrictFloat | StrictStr]]
Settings = Annotated[Mapping[str, Any], AfterValidator(_flat)]


def short(value: Scalar) -> str:
    """Return a value as TOML has it, a number in few digits if these say all of it."""
    if not isinstance(value, float):
        return str(value).lower() if isinstance(value, bool) else str(value)
    text = f"{value:g}"
    return text if float(text) == value else repr(value)


@dataclass(frozen=True, config=CHECKED)
class Tune:
    """Learning rates, of which each rule has the best in each panel, and the runs for each."""

    lr: Axis[Rate]
    seeds: Count


@dataclass(frozen=True, config=CHECKED)
class Sweep:
    """The product of rules, axes and seeds; docs/sweeps.md says what each key is."""

    # ``parameters`` are the axes ``"rule.KEY"``, which stand in a file beside the other keys.

    title: Label
    rules: Axis[Label]
    clients: Count = 10
    shards: Different[StrictInt] = (2,)
    dirichlet: Different[StrictFloat] = ()
    natural: StrictBool = False
    iid: StrictBool = False
    layers: Axis[Literal[1, 2]] = (1,)
    selected: Axis[StrictInt] = (2,)
    queue: Axis[StrictInt] = (-1,)
    devices: Different[Label] = ()
    parameters: Axes = field(default_factory=dict, metadata={"key": False})
    seeds: Count = 10
    model: Literal["vgg16", "scratch"] = "scratch"
    settings: Settings = field(default_factory=dict)
    rule: Mapping[str, Settings] = field(default_factory=dict)
    tune: Annotated[Tune | None, BeforeValidator(lambda table: table or None)] = None
    quick: Mapping[str, Any] = field(default_factory=dict)
    report: Report = field(default_factory=Report)

    def __post_init__(self) -> None:
        for many in self.selected:
            if many > self.clients:
                raise ValueError(f"selected = {many} is more than clients = {self.clients}")
        if not (self.shards or self.dirichlet or self.natural or self.iid):
            raise ValueError("shards and dirichlet are both empty: give at least one partition")
        check_rules(self.rules, self.rule)
        self._check_settings()
        self._check_lines()
        for cell in self.cells():
            _ = cell.config  # what is wrong is said before anything runs

    def _check_settings(self) -> None:
        """Refuse settings that are an axis, or that leave nothing to compare."""
        refused = {**REFUSED, **dict.fromkeys(self.parameters, _AXIS_TOO)}
        if len(self.queue) > 1:
            refused["queue-length"] = "is an axis of a sweep: use queue"
        if self.devices:
            refused["devices"] = _AXIS_TOO
        if self.tune:
            refused["lr"] = "beside tune, which chooses lr: have one of them"
        refuse_axes(self.settings, refused)
        del refused["strategy"]
        for rule, own in self.rule.items():
            refuse_axes(own, {**refused, **REFUSED_OF_A_RULE}, f"[rule.{rule}]")

    def _check_lines(self) -> None:
        """Refuse labels of which files could not be named, and what a report says of no line."""
        names: dict[str, str] = {}
        for line, _, _ in self._lines:
            name = readable_name("", line, 0)
            if name in names:
                raise ValueError(
                    f"the rules {names[name]!r} and {line!r} differ in no letter or digit, so that "
                    "their files would have the same name: rename one"
                )
            if len(name.encode()) > _LONGEST_LABEL:
                raise ValueError(
                    f"the rule {line[:40]!r}... has too long a name for a file: it may have "
                    f"{_LONGEST_LABEL} bytes"
                )
            names[name] = line
        check_report(self.report, [*names.values()])

    def check_parameters(self) -> None:
        """Refuse a ``rule.KEY`` that no rule has, or not the one that it is for.

        A part of a sweep may be left without.
        """
        for rule in self.rules:
            with in_plain_words(f"{rule}: "):
                check_parameters(self._own(rule))
        for key in (*self.parameters, *self.settings):
            if not any(self._has(rule, key) for rule in self.rules):
                there = {name for own in self._known.values() for name in own}
                near = get_close_matches(key.removeprefix(PARAMETER), there, n=1)
                each = (
                    f"{rule} has {', '.join(own) or 'none'}" for rule, own in self._known.items()
                )
                hint = f"did you mean {PARAMETER}{near[0]}?" if near else "; ".join(each)
                raise ValueError(f"{key}: none of these rules has this parameter: {hint}")

    @property
    def left_out(self) -> dict[str, list[str]]:
        """The ``rule.KEY`` of the settings that some rules do not have, and these rules."""
        lacking = {k: [r for r in self.rules if not self._has(r, k)] for k in self.settings}
        return {key: rules for key, rules in lacking.items() if rules}

    def _has(self, rule: str, key: str) -> bool:
        return not key.startswith(PARAMETER) or key.removeprefix(PARAMETER) in self._known[rule]

    @cached_property
    def _known(self) -> dict[str, tuple[str, ...]]:
        """The parameters of each rule."""
        return {rule: _parameters(self._own(rule).strategy) for rule in self.rules}

    def _own(self, rule: str) -> Config:
        """Return the app's settings with those of one rule."""
        strategy = {"strategy": "uniform" if rule == ALL_CLIENTS else rule}
        own = merged(default_run_config(), strategy, self.rule.get(rule, {}))
        return Config.from_run_config(own)

    @property
    def reference(self) -> str:
        """The line that every other is tested against, whether or not it comes to a result."""
        return self.report.reference or self._lines[0][0]

    @property
    def strategies(self) -> set[str]:
        """The strategies of all runs."""
        return {str(cell.settings["strategy"]) for cell in self.cells()}

    def cells(self) -> list[Cell]:
        """Return all runs, seed by seed, so that what is there first is comparable."""
        defaults, cells = default_run_config(), []
        for seed, (panel, own), (line, rule, values) in product(
            range(self.seeds), self._panels.items(), self._lines
        ):
            settings = merged(defaults, own, values, {"seed": seed})
            for (model, layers), network in _LAYERS.items():
                if network.items() <= settings.items() and not network.items() <= own.items():
                    raise ValueError(
                        f"the setting model = {settings['model']} is what the sweep's keys model = "
                        f"{model!r} and layers = [{layers}] stand for: use these"
                    )
            cells.append(Cell(panel, line, rule, seed, self.clients, settings))
        return cells

    @cached_property
    def _panels(self) -> dict[str, dict[str, Any]]:
        """The settings of each panel."""
        parts: dict[str, dict[str, Any]] = {
            f"shards {n}": {"partition": "shards", "shards-per-client": n} for n in self.shards
        }
        for alpha in self.dirichlet:
            own = {"partition": "dirichlet", "dirichlet-alpha": alpha}
            parts[f"dirichlet {short(alpha)}"] = own
        for name in ("natural", "iid"):
            if getattr(self, name):
                parts[name] = {"partition": name}
        panels = {
            f"{part}, layers {layers}, selected {selected}": {
                **own,
                **_LAYERS[self.model, layers],
                "num-selected": selected,
            }
            for (part, own), layers, selected in product(parts.items(), self.layers, self.selected)
        }
        if not self.devices:
            return panels
        return {
            f"{panel}, devices {devices}": {**own, "devices": devices}
            for (panel, own), devices in product(panels.items(), self.devices)
        }

    @cached_property
    def _lines(self) -> list[tuple[str, str, dict[str, Any]]]:
        """What each line is called, its rule, and its settings beside those of a panel."""
        lines = []
        for queue, rule in product(self.queue, self.rules):
            name = rule if len(self.queue) == 1 else f"{rule} L={queue}"
            own: dict[str, Any] = {"strategy": rule, "queue-length": queue}
            if rule == ALL_CLIENTS:  # nobody is left to rest: no length of the queue is theirs
                if queue != self.queue[0]:
                    continue
                name = rule
                own = {"strategy": "uniform", "queue-length": 0, "num-selected": self.clients}
            common = {key: value for key, value in self.settings.items() if self._has(rule, key)}
            axes = {key: those for key, those in self.parameters.items() if self._has(rule, key)}
            for values in product(*axes.values()):
                chosen = dict(zip(axes, values, strict=True))
                said = (f"{k.removeprefix(PARAMETER)}={short(v)}" for k, v in chosen.items())
                settings = merged(own, common, self.rule.get(rule, {}), chosen)
                lines.append((" ".join([name, *said]), rule, settings))
        return lines

    def quickened(self) -> "Sweep":
        """Return the quick version."""
        for key in ("title", "quick", "report", "settings"):
            if key in self.quick:
                raise ValueError(f"[quick] cannot replace {key}: settings stand in [quick] itself")
        own = {f.name for f in fields(self) if f.metadata.get("key", True)}
        keys = {key: value for key, value in self.quick.items() if key in own}
        given = {key: value for key, value in self.quick.items() if key in self.parameters}
        axes = TypeAdapter(Axes).validate_python(given)
        rest = {k: v for k, v in self.quick.items() if k not in keys and k not in axes}
        return replace(
            self,
            **keys,
            parameters={**self.parameters, **axes},
            title=f"{self.title}; quick",
            settings={**self.settings, **rest},
            quick={},
        )


def _parameters(strategy: str) -> tuple[str, ...]:
    if ":" not in strategy:
        return declared_parameters(strategy)
    from ..run.strategy import imported_parameters  # with Flower, which takes a second

    return imported_parameters(strategy)


def check_rules(rules: Sequence[str], own: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse a name that is no rule's, and settings of a rule that is not in the list."""
    labels = [rule for rule, settings in own.items() if "strategy" in settings]
    for rule in rules:
        strategy = own.get(rule, {}).get("strategy", rule)
        if rule == ALL_CLIENTS or (isinstance(strategy, str) and is_rule(strategy)):
            continue
        if strategy != rule:
            known, where = nearest(str(strategy), CHOICES["strategy"]), f"[rule.{rule}] strategy: "
        else:
            known, where = nearest(rule, [*CHOICES["strategy"], ALL_CLIENTS, *labels]), "rules: "
            known += f"; a label needs a strategy in [rule.{rule}]" if rule in own else ""
        raise ValueError(f"{where}there is no rule {strategy!r}: {known}")
    for rule in own:
        if rule not in rules:
            raise ValueError(
                f"[rule.{rule}] is for a rule that is not among the rules: {nearest(rule, rules)}"
            )


def check_report(report: Report, lines: Sequence[str]) -> None:
    """Refuse what is said of no line; the reference is the first one if the report names none."""
    reference = report.reference or lines[0]
    if reference not in lines:
        raise ValueError(
            f"report.reference: there is no {reference!r}: {nearest(reference, lines)}"
        )
    for number, claim in enumerate(report.claims):
        if reference in claim.against:
            raise ValueError(f"report: a claim holds the reference {reference!r} against itself")
        for line in claim.against:
            if line not in lines:
                raise ValueError(
                    f"report.claims[{number}].against: there is no {line!r}: {nearest(line, lines)}"
                )


def network_keys(settings: Mapping[str, Scalar]) -> dict[str, Any]:
    """Return the keys of a sweep that stand for the network of some settings, if there are any."""
    for (model, layers), network in _LAYERS.items():
        if network.items() <= settings.items():
            return {"model": model, "layers": (layers,)}
    return {}


def refuse_axes(
    settings: Mapping[str, Any], refused: Mapping[str, str], where: str = "the setting"
) -> None:
    """Refuse settings of which a label would say otherwise, or that are of no use in a sweep."""
    for key, why in refused.items():
        if key in settings:
            raise ValueError(f"{where} {key} = {settings[key]} {why}")
