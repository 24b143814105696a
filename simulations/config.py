"""Every setting of the app in one place, read and checked once."""

import dataclasses
import json
import tomllib
from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches
from functools import partial
from math import isfinite
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, ConfigDict
from pydantic.dataclasses import dataclass

from pncs_flower.plain_text import counted

from .choices import (
    APP_DIRECTORY,
    CHOICES,
    FLEETS,
    HUB,
    Scalar,
    default_run_config,
    did_you_mean,
    is_rule,
    nearest,
)
from .parameters import declared_parameters
from .validation import in_plain_words, within

if TYPE_CHECKING:
    from .data.hub_columns import Reading

__all__ = [
    "APP_DIRECTORY",
    "CHOICES",
    "FLEETS",
    "Agreeing",
    "Config",
    "Scalar",
    "check_parameters",
    "check_selected",
    "default_run_config",
    "format_toml",
    "merged",
    "parse_rule",
    "unused_settings",
]

_TORCHVISION = "torchvision/"
_FAMILIES = {"model": _TORCHVISION, "dataset": HUB}  # of names that begin so
_PATHS = {"strategy": ["module:Rule"]} | {k: [f"{each}NAME"] for k, each in _FAMILIES.items()}
_FILE, _FILES = "a file", (".csv", ".json")

_OF_FILES, _OF_HUB = "data-dir", ("input-column", "label-column", "client-column", "image-size")
"""The settings that only some data sets read: those with files, and those of the hub."""

_READ_BY: dict[str, dict[str, tuple[str, ...]]] = {
    "partition": {"shards-per-client": ("shards",), "dirichlet-alpha": ("dirichlet",)},
    "devices": dict.fromkeys(("deadline", "extra"), (*FLEETS, _FILE)),
    "model": dict.fromkeys(
        ("weights", "normalization", "resize", "trainable-layers", "features", "cache-dir"),
        ("vgg16", _TORCHVISION),
    ),
}
"""The settings that only some partitions, fleets and models read."""

_INPUTS = (
    "dataset",
    _OF_FILES,
    *_OF_HUB,
    "evaluate-on",
    "test-examples",
    *_READ_BY["model"],
    "model",
)
_PARTS = ("partition", "shards-per-client", "dirichlet-alpha", "seed")


def _choose(key: str, value: str) -> str:
    """Refuse a name that is not among the choices of a setting."""
    path = key == "strategy" and is_rule(value)
    if path or _kind(key, value) != value or value in CHOICES[key]:
        return value
    known, hint = [*CHOICES[key], *_PATHS.get(key, [])], did_you_mean(value, CHOICES[key])
    raise ValueError(f"must be one of {', '.join(known)}{hint}")


def _kind(key: str, value: str) -> str:
    """Return what a name begins with that stands for many, or else the name."""
    if key == "devices" and value.lower().endswith(_FILES):
        return _FILE
    family = _FAMILIES.get(key)
    return family if family and value.startswith(family) else value


def _usual() -> Mapping[str, Scalar]:
    """Return the defaults; a bundle that a SuperLink was sent has no file of them here."""
    try:
        return default_run_config()
    except FileNotFoundError:
        return {}


def _choice(key: str) -> AfterValidator:
    return AfterValidator(partial(_choose, key))


def _to_be_sent(value: int) -> int:
    if value >= 2**63:
        raise ValueError("must be below 2**63, the most that Flower can send")
    return value


def _length_of_queue(value: int) -> int:
    if value < -1:
        raise ValueError("must be at least 0, or -1 for the rule's own")
    return value


def _to_be_written(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"must be text that UTF-8 has, unlike character {error.start + 1}: rename it"
        ) from None
    if "\0" in text:
        raise ValueError("must not have a zero character")
    return text


def _fleet(value: str) -> str:
    """Refuse what is neither a fleet's name nor the path of a file."""
    if value in (*FLEETS, "none") or value.lower().endswith(_FILES):
        return value
    hint = did_you_mean(value, FLEETS)
    raise ValueError(f"must be none, {', '.join(FLEETS)}, or a .csv or .json file{hint}")


def _key(name: str) -> str:
    return name.replace("_", "-")


def _name(key: str) -> str:
    return key.replace("-", "_")


Whole = Annotated[int, AfterValidator(_to_be_sent)]
AtLeastZero = Annotated[Whole, within(least=0)]
AtLeastOne = Annotated[Whole, within(least=1)]
AboveZero = Annotated[float, within(above=0)]
Text = Annotated[str, AfterValidator(_to_be_written)]


# Built when it is first made: to say what a command takes, nothing is to be checked.
_CHECKED = ConfigDict(strict=True, alias_generator=_key, validate_by_name=True, defer_build=True)


@dataclass(frozen=True, config=_CHECKED)
class Config:
    """The settings of one run; see the comments in the app's ``pyproject.toml``."""

    # A field ``num_selected`` is the setting ``num-selected``.

    strategy: Annotated[str, _choice("strategy")]
    rule: Text
    combine: Text
    num_selected: AtLeastOne
    queue_length: Annotated[Whole, AfterValidator(_length_of_queue)]
    rest_rounds: Annotated[Whole, AfterValidator(_length_of_queue)]
    num_rounds: AtLeastOne
    stop_after: AtLeastZero
    lr: AboveZero
    momentum: Annotated[float, within(least=0, below=1)]
    local_epochs: AtLeastOne
    batch_size: AtLeastZero
    aggregation: Annotated[str, _choice("aggregation")]
    max_weight: AboveZero
    dataset: Annotated[str, _choice("dataset")]
    data_dir: Text
    input_column: Text
    label_column: Text
    client_column: Text
    image_size: AtLeastZero
    evaluate_on: Annotated[str, _choice("evaluate-on")]
    test_examples: AtLeastZero
    partition: Annotated[str, _choice("partition")]
    shards_per_client: AtLeastOne
    dirichlet_alpha: AboveZero
    model: Annotated[str, _choice("model")]
    weights: Text
    normalization: Annotated[str, _choice("normalization")]
    resize: AtLeastZero
    trainable_layers: Text
    features: Annotated[str, _choice("features")]
    cache_dir: Text
    devices: Annotated[Text, AfterValidator(_fleet)]
    deadline: Annotated[float, within(least=0)]
    extra: AtLeastZero
    device: Annotated[str, _choice("device")]
    precision: Annotated[str, _choice("precision")]
    tensorboard: bool
    checkpoint: bool
    resume: bool
    output_dir: Text
    seed: AtLeastZero

    @classmethod
    def from_run_config(cls, run_config: Mapping[str, Scalar]) -> "Config":
        """Read and check ``context.run_config``: every setting, and no other."""
        run_config = merged(run_config)
        known = [_key(field.name) for field in dataclasses.fields(cls)]
        for key in run_config:
            if key not in known:
                raise ValueError(f"unknown setting {key!r}: {_hint(key, known)}")
        with in_plain_words(usual=_usual):
            return cls(**run_config)

    def to_run_config(self) -> dict[str, Scalar]:
        """Return the settings as Flower's run configuration."""
        return {_key(field.name): getattr(self, field.name) for field in dataclasses.fields(self)}

    def of_inputs(self) -> "Agreeing":
        """Return the settings, equal to all that have the same examples."""
        return self._agreeing(_INPUTS)

    def of_parts(self) -> "Agreeing":
        """Return the settings, equal to all whose clients hold the same examples."""
        return self._agreeing((*_INPUTS, *_PARTS))

    def _agreeing(self, keys: Iterable[str]) -> "Agreeing":
        own = self.to_run_config()
        return Agreeing(self, tuple(own[key] for key in keys))

    @property
    def rule_parameters(self) -> dict[str, Any]:
        """The parameters of the rule that are given."""
        return parse_rule(self.rule)

    @property
    def data(self) -> tuple[str, str, "Reading"]:
        """The data set, its folder, and how it is read if it is one of the hub."""
        from .data.hub_columns import Reading  # NumPy takes a moment, and no wrong setting waits

        columns = self.input_column, self.label_column, self.client_column
        return self.dataset, self.data_dir, Reading(*columns, self.image_size)

    @property
    def has_devices_file(self) -> bool:
        """Whether the clients' devices are read from a file."""
        return self.devices not in (*FLEETS, "none")

    @property
    def has_frozen_layers(self) -> bool:
        """Whether only the last layers of a pre-trained network are trained."""
        return self.model == "vgg16" or self.model.startswith(_TORCHVISION)

    @property
    def trainable_layer_names(self) -> tuple[str, ...]:
        """The layers that are trained, of a model with frozen ones."""
        names = (name.strip() for name in self.trainable_layers.split(","))
        return tuple(name for name in names if name)


@dataclasses.dataclass(frozen=True)
class Agreeing:
    """Settings that are equal to others where those agree that decide what runs can share."""

    config: Config = dataclasses.field(compare=False)
    values: tuple[Scalar, ...]


def parse_rule(text: object) -> dict[str, Any]:
    """Return the parameters of a rule that a text gives, such as ``p = 2, form = "printed"``."""
    if not isinstance(text, str):
        raise ValueError(f"rule = {text!r} must be text, not {type(text).__name__}")
    try:
        return tomllib.loads(f"rule = {{{text}}}")["rule"]  # type: ignore[no-any-return]
    except tomllib.TOMLDecodeError as error:
        raise ValueError(
            f"rule = {text!r} must be TOML, such as 'p = 2, form = \"printed\"': {error}"
        ) from None


def merged(*settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings, the later ones for the earlier; each ``rule.KEY`` is put into ``rule``."""
    result: dict[str, Any] = {}
    rule: dict[str, Any] = {}
    for values in settings:
        for key, value in values.items():
            if key == "rule":
                rule |= value if isinstance(value, Mapping) else parse_rule(value)
            elif key.startswith("rule."):
                rule[key.removeprefix("rule.")] = value
            else:
                result[key] = value
    given = any(key.partition(".")[0] == "rule" for values in settings for key in values)
    if given:
        result["rule"] = ", ".join(f"{key} = {_inline(value)}" for key, value in rule.items())
    return result


def _inline(value: object) -> str:
    """Return a value as TOML on one line: JSON, if what lies beyond ASCII is left as it is."""
    if isinstance(value, Mapping):
        inside = (f"{json.dumps(key)} = {_inline(of_key)}" for key, of_key in value.items())
        return f"{{{', '.join(inside)}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_inline, value))}]"
    if isinstance(value, float) and not isfinite(value):
        return str(value)
    return json.dumps(value, ensure_ascii=False, default=str)  # a date is text: no setting is one


def format_toml(values: Mapping[str, Scalar]) -> str:
    """Return settings as TOML."""
    return "".join(f"{key} = {_inline(value)}\n" for key, value in values.items())


def check_selected(config: Config, clients: int) -> None:
    """Refuse to select more clients in a round than there are."""
    if config.num_selected > clients:
        raise ValueError(
            f"num-selected = {config.num_selected}, but there {'is' if clients == 1 else 'are'} "
            f"only {counted(clients, 'client')}: select fewer in a round with --num-selected, or "
            "have more with --clients"
        )


def check_parameters(config: Config, known: Collection[str] | None = None) -> None:
    """Refuse parameters that the rule of the settings does not have; those it has are ``known``.

    Else they are read from its file, and of a rule with an import path nothing is refused.
    """
    strategy = config.strategy
    if known is None:
        if ":" in strategy:
            return
        known = declared_parameters(strategy)
    for key in config.rule_parameters:
        if key in ("num_selected", "queue_length", "rest_rounds", "seed"):
            raise ValueError(f"rule.{key} is the setting {_key(key)}: use that")
        if key not in known:
            near = get_close_matches(key, known, n=1)
            there = f"there are {', '.join(known)}" if known else "it has none"
            hint = f"did you mean rule.{near[0]}?" if near else there
            raise ValueError(f"strategy = {strategy!r} has no parameter rule.{key}: {hint}")


def unused_settings(config: Config) -> dict[str, list[str]]:
    """Return settings that are not the default, but are not read, by what does not read them."""
    # Such as ``{"digits": ["data-dir"]}``.
    default = default_run_config()
    unused: dict[str, list[str]] = {}
    for setting, readers in {"dataset": _read_by_data_sets(), **_READ_BY}.items():
        chosen = getattr(config, _name(setting))
        kind = _kind(setting, chosen)
        for key, read_by in readers.items():
            if getattr(config, _name(key)) != default[key] and kind not in read_by:
                reader = f"{setting} = none" if chosen == "none" else chosen
                unused.setdefault(reader, []).append(key)
    return unused


def _read_by_data_sets() -> dict[str, tuple[str, ...]]:
    from .data.datasets import DATASETS  # with NumPy; see `Config.data`

    with_files = (*(name for name, each in DATASETS.items() if each.files), HUB)
    on_hub = (*(name for name, each in DATASETS.items() if each.on_hub), HUB)
    return {_OF_FILES: with_files, **dict.fromkeys(_OF_HUB, on_hub)}


def _hint(key: str, known: Collection[str]) -> str:
    """Say what was meant by a setting that there is not."""
    if any(_name(key) in declared_parameters(rule) for rule in CHOICES["strategy"]):
        return f"did you mean rule.{_name(key)}?"
    return nearest(key, known)
