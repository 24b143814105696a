"""Every setting of the app in one place, read and checked once."""

import json
import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from pkgutil import iter_modules
from types import MappingProxyType
from typing import Any

from .data.datasets import DATASETS

__all__ = [
    "APP_DIRECTORY",
    "CHOICES",
    "Agreeing",
    "Config",
    "Scalar",
    "default_run_config",
    "format_toml",
    "merged",
    "parse_rule",
    "unused_settings",
]

Scalar = bool | int | float | str

APP_DIRECTORY = Path(__file__).resolve().parent
"""The Flower app that `flwr run` is given: this folder, in a checkout as in a wheel."""

CHOICES: dict[str, tuple[str, ...]] = {
    # By the names of their files: to import them is to import Flower, which `--help` need not.
    "strategy": tuple(
        module.name.replace("_", "-")
        for module in iter_modules([str(APP_DIRECTORY.parent / "strategies" / "rules")])
    ),
    "form": ("squared", "normalized", "printed", "power"),
    "summary": ("update", "gradient"),
    "variant": ("pow-d", "cpow-d", "rpow-d"),
    "schedule": ("fashion-mnist", "cifar-10", "short"),
    "unseen": ("uniform", "first"),
    "aggregation": ("examples", "uniform"),
    "dataset": tuple(DATASETS),
    "evaluate-on": ("test", "validation"),
    "partition": ("shards", "dirichlet", "iid"),
    "model": ("linear", "mlp", "cnn", "resnet18", "mobilenet_v3_small", "vgg16"),
    "normalization": ("imagenet1k-v1", "imagenet1k-features"),
    "features": ("standardized", "raw"),
    "device": ("auto", "cpu", "cuda"),
    "precision": ("float32", "bfloat16"),
}
"""What the settings that are names may be; a strategy also an import path, ``module:Rule``, and a
model also ``torchvision/NAME``."""

_MOST = 2**63 - 1
_AT_LEAST_ONE = ("num-selected", "num-rounds", "local-epochs", "shards-per-client", "p")
_AT_LEAST_ZERO = ("stop-after", "candidates", "batch-size", "momentum", "resize", "seed")
_ABOVE_ZERO = ("lr", "dirichlet-alpha")
_TORCHVISION = "torchvision/"
_PATHS = {"strategy": ["module:Rule"], "model": [f"{_TORCHVISION}NAME"]}
_IMPORT_PATH = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


_COMPARING = ("pncs", "gradient-memory", "divfl")
_READ_BY: dict[str, dict[str, tuple[str, ...]]] = {
    "strategy": {
        "p": ("pncs",),
        "form": ("pncs",),
        "sketch": _COMPARING,
        "layers": (*_COMPARING, "gradient-norm"),
        "summary": (*_COMPARING, "gradient-norm"),
        "candidates": ("pncs", "gradient-memory", "power-of-choice"),
        "variant": ("power-of-choice",),
        "unseen": ("active-fl",),
        "schedule": ("fedcor",),
    },
    "dataset": {"data-dir": tuple(name for name, each in DATASETS.items() if each.files)},
    "partition": {"shards-per-client": ("shards",), "dirichlet-alpha": ("dirichlet",)},
    "model": dict.fromkeys(
        ("weights", "normalization", "resize", "trainable-layers", "features", "cache-dir"),
        ("vgg16", _TORCHVISION),
    ),
}
"""The settings that only some strategies, data sets, partitions and models read."""

_INPUTS = (
    "dataset",
    "data_dir",
    "evaluate_on",
    "model",
    "weights",
    "normalization",
    "resize",
    "trainable_layers",
    "features",
    "cache_dir",
)
_PARTS = ("partition", "shards_per_client", "dirichlet_alpha", "seed")


@dataclass(frozen=True)
class Config:
    """The settings of one run; see the comments in the app's ``pyproject.toml``.

    A field ``num_selected`` is the setting ``num-selected``.
    """

    strategy: str
    rule: str
    num_selected: int
    queue_length: int
    p: float
    form: str
    sketch: str
    layers: str
    summary: str
    candidates: int
    variant: str
    schedule: str
    unseen: str
    num_rounds: int
    stop_after: int
    lr: float
    momentum: float
    local_epochs: int
    batch_size: int
    aggregation: str
    dataset: str
    data_dir: str
    evaluate_on: str
    partition: str
    shards_per_client: int
    dirichlet_alpha: float
    model: str
    weights: str
    normalization: str
    resize: int
    trainable_layers: str
    features: str
    cache_dir: str
    device: str
    precision: str
    tensorboard: bool
    checkpoint: bool
    resume: bool
    output_dir: str
    seed: int

    def __post_init__(self) -> None:
        for key, value in self.to_run_config().items():
            _check(key, value)

    @classmethod
    def from_run_config(cls, run_config: Mapping[str, Scalar]) -> "Config":
        """Read and check a run's settings.

        Parameters
        ----------
        run_config : mapping of str to scalar
            ``context.run_config``: every setting, and no other.

        Raises
        ------
        ValueError
            If a setting is missing, unknown, of another type or out of its range.
        """
        run_config = merged(run_config)
        types = {_key(field.name): field.type for field in fields(cls)}
        for key in run_config:
            if key not in types:
                near = get_close_matches(key, types, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(types)}"
                raise ValueError(f"unknown setting {key!r}: {hint}")
        missing = [key for key in types if key not in run_config]
        if missing:
            raise ValueError(f"missing settings: {', '.join(missing)}")
        values: dict[str, Any] = {
            _name(key): _typed(key, run_config[key], kind) for key, kind in types.items()
        }
        return cls(**values)

    def to_run_config(self) -> dict[str, Scalar]:
        """Return the settings as Flower's run configuration."""
        return {_key(field.name): getattr(self, field.name) for field in fields(self)}

    def of_inputs(self) -> "Agreeing":
        """Return the settings, equal to all that have the same examples."""
        return Agreeing(self, tuple(getattr(self, name) for name in _INPUTS))

    def of_parts(self) -> "Agreeing":
        """Return the settings, equal to all whose clients hold the same examples."""
        return Agreeing(self, tuple(getattr(self, name) for name in (*_INPUTS, *_PARTS)))

    @property
    def rule_parameters(self) -> dict[str, Any]:
        """The parameters of the rule that are given."""
        return parse_rule(self.rule)

    @property
    def layer_names(self) -> tuple[str, ...] | None:
        """The layers to compare; None for all of them."""
        return _list(self.layers) or None

    @property
    def has_frozen_layers(self) -> bool:
        """Whether only the last layers of a pre-trained network are trained."""
        return self.model == "vgg16" or self.model.startswith(_TORCHVISION)

    @property
    def trainable_layer_names(self) -> tuple[str, ...]:
        """The layers that are trained, of a model with frozen ones."""
        return _list(self.trainable_layers)


@dataclass(frozen=True)
class Agreeing:
    """Settings that are equal to others if they agree in what matters.

    So that runs which differ in the rest can share what was made for one of them.

    Attributes
    ----------
    config : Config
        All settings of one of them.
    values : tuple of scalar
        Those in which they agree.
    """

    config: Config = field(compare=False)
    values: tuple[Scalar, ...]


def default_run_config() -> dict[str, Scalar]:
    """Return the settings as the app's ``pyproject.toml`` has them, in a dict of the caller's."""
    return dict(_default_settings())


# A sweep asks for them once or twice for each of its cells.
@cache
def _default_settings() -> Mapping[str, Scalar]:
    with (APP_DIRECTORY / "pyproject.toml").open("rb") as file:
        return MappingProxyType(tomllib.load(file)["tool"]["flwr"]["app"]["config"])


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
    """Return a value as TOML on one line."""
    if isinstance(value, Mapping):
        inside = (f"{json.dumps(key)} = {_inline(of_key)}" for key, of_key in value.items())
        return f"{{{', '.join(inside)}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_inline, value))}]"
    return json.dumps(value, ensure_ascii=False)


def format_toml(values: Mapping[str, Scalar]) -> str:
    """Return settings as TOML."""
    # For these types JSON is TOML, if only what lies beyond ASCII is left as it is.
    lines = (f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in values.items())
    return "\n".join(lines) + "\n"


def _list(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _key(name: str) -> str:
    return name.replace("_", "-")


def _name(key: str) -> str:
    return key.replace("-", "_")


def unused_settings(config: Config) -> dict[str, list[str]]:
    """Return the settings that are not the default, but are not read, by what does not read them.

    Such as ``{"uniform": ["p"], "digits": ["data-dir"]}``.
    """
    default = default_run_config()
    unused: dict[str, list[str]] = {}
    for setting, readers in _READ_BY.items():
        chosen = getattr(config, _name(setting))
        kind = _TORCHVISION if chosen.startswith(_TORCHVISION) else chosen
        for key, read_by in readers.items():
            if getattr(config, _name(key)) != default[key] and kind not in read_by:
                unused.setdefault(chosen, []).append(key)
    return unused


def _typed(key: str, value: Scalar, kind: Any) -> Scalar:
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise ValueError(f"{key} has {len(str(value))} digits, but must be finite") from None
    if type(value) is not kind:
        kinds = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
        wanted = kinds[kind]
        raise ValueError(f"{key} = {value!r} must be {wanted}, not {type(value).__name__}")
    return value


def _check(key: str, value: Scalar) -> None:
    if key == "strategy" and _IMPORT_PATH.fullmatch(str(value)):
        return
    if key == "model" and str(value).startswith(_TORCHVISION):
        return
    if key in CHOICES and value not in CHOICES[key]:
        near = get_close_matches(str(value), CHOICES[key], n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        known = [*CHOICES[key], *_PATHS.get(key, [])]
        raise ValueError(f"{key} = {value!r} must be one of {', '.join(known)}{hint}")
    if isinstance(value, str):
        _check_text(key, value)
        return
    if isinstance(value, bool):
        return
    if isinstance(value, int) and value > _MOST:
        raise ValueError(f"{key} = {value} must be below 2**63, the most that Flower can send")
    if not math.isfinite(value):
        raise ValueError(f"{key} = {value} must be finite")
    if key in _AT_LEAST_ONE and value < 1:
        raise ValueError(f"{key} = {value} must be at least 1")
    if key in _AT_LEAST_ZERO and value < 0:
        raise ValueError(f"{key} = {value} must be at least 0")
    if key == "queue-length" and value < -1:
        raise ValueError(f"queue-length = {value} must be at least 0, or -1 for the default")
    if key in _ABOVE_ZERO and value <= 0:
        raise ValueError(f"{key} = {value} must be above 0")
    if key == "momentum" and value >= 1:
        raise ValueError(f"momentum = {value} must be below 1")


def _check_text(key: str, value: str) -> None:
    """Refuse what a file of settings cannot hold, such as bytes of a path that are no UTF-8."""
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{key} = {value!r} cannot be written as UTF-8 (character {error.start + 1}): rename it"
        ) from None
    if "\0" in value:
        raise ValueError(f"{key} = {value!r} must not have a zero character")
