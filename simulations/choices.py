"""What the settings may be and are by default: all that the command line's help needs of them."""

# So nothing is imported here that takes a moment, such as Flower, NumPy or pydantic.

import re
import tomllib
from collections.abc import Collection, Iterator
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from pkgutil import iter_modules
from types import MappingProxyType

from pncs_flower.plain_text import listed

Scalar = bool | int | float | str

APP_DIRECTORY = Path(__file__).resolve().parent
"""The Flower app that `flwr run` is given: this folder, in a checkout as in a wheel."""

CHOICES: dict[str, tuple[str, ...]] = {
    # By the names of their files.
    "strategy": tuple(
        module.name.replace("_", "-")
        for module in iter_modules([str(APP_DIRECTORY.parent / "strategies" / "rules")])
    ),
    "aggregation": ("examples", "uniform"),
    "dataset": (
        *("digits", "fashion-mnist", "cifar10", "diabetes", "made-up-languages"),
        *("cifar100", "femnist", "shakespeare"),
    ),
    "evaluate-on": ("test", "validation"),
    "partition": ("shards", "dirichlet", "iid", "natural"),
    "model": (
        *("linear", "mlp", "cnn", "resnet8", "resnet18", "mobilenet_v3_small", "vgg16"),
        "char-lstm",
    ),
    "normalization": ("imagenet1k-v1", "imagenet1k-features"),
    "features": ("standardized", "raw"),
    "device": ("auto", "cpu", "cuda"),
    "precision": ("float32", "bfloat16"),
}
"""What the settings that are names may be; a strategy also an import path, ``module:Rule``, a model
also ``torchvision/NAME``, and a data set ``hf:NAME``."""

HUB = "hf:"
"""What the name of any data set of the Hugging Face hub begins with."""

FLEETS = ("phones", "cross-silo", "uniform")
"""The names of `pncs_flower.devices.PRESETS`."""

_ELSEWHERE = {
    "lr": ("learning-rate", "client-lr", "eta"),
    "num-rounds": ("rounds", "num-server-rounds", "global-rounds", "global-epochs", "comm-rounds"),
    "local-epochs": ("epochs", "num-epochs", "local-ep"),
    "batch-size": ("bs", "local-bs"),
    "num-selected": ("clients-per-round", "sample-size", "num-sampled-clients"),
    "clients": ("num-clients", "n-clients", "num-users", "num-supernodes", "num-nodes"),
    "strategy": ("algorithm", "aggregator", "sampler", "client-selection"),
    "dirichlet-alpha": ("alpha",),
    "seed": ("random-state", "random-seed"),
    "output-dir": ("out", "save-dir", "log-dir"),
    "uniform": ("random", "fedavg"),
}
"""What other frameworks and papers call a setting, an option or a rule, by what it is here."""

_SYNONYMS = {name: here for here, names in _ELSEWHERE.items() for name in names}

_IMPORT_PATH = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def is_rule(name: str) -> bool:
    """Tell whether a name is that of a rule, or may be the import path of one."""
    return name in CHOICES["strategy"] or bool(_IMPORT_PATH.fullmatch(name))


# A sweep asks for them once or twice for each of its cells.
@cache
def default_run_config() -> MappingProxyType[str, Scalar]:
    """Return the settings as the app's ``pyproject.toml`` has them."""
    with (APP_DIRECTORY / "pyproject.toml").open("rb") as file:
        return MappingProxyType(tomllib.load(file)["tool"]["flwr"]["app"]["config"])


def called_here(name: str) -> str:
    """Return what a setting, an option or a rule of another framework is called here."""
    return _SYNONYMS.get(name.lower().replace("_", "-"), name)


def meant_by(wrong: str, known: Collection[str]) -> str | None:
    """Return which of the known names is called so elsewhere, or is spelt nearly so."""
    synonym = called_here(wrong)
    if synonym in known:
        return synonym
    near = get_close_matches(wrong, known, n=1) or get_close_matches(wrong.lower(), known, n=1)
    return next(iter(near), None)


def did_you_mean(wrong: str, known: Collection[str]) -> str:
    """Return which of the known names was meant, in brackets; empty if none is near."""
    meant = meant_by(wrong, known)
    return f" (did you mean {meant!r}?)" if meant else ""


def settings_with_comments() -> Iterator[tuple[dict[str, str], str]]:
    """Yield the settings that stand under each comment, with their defaults, and the comment."""
    text = (APP_DIRECTORY / "pyproject.toml").read_text(encoding="utf-8")
    _, _, body = text.partition("[tool.flwr.app.config]\n")
    for block in re.finditer(r"((?:^#.*\n)+)((?:^[\w-].*\n?)+)", body, re.M):
        comment = re.sub(r"^# ?", "", block[1], flags=re.M)
        pairs = (line.split(" = ", 1) for line in block[2].splitlines())
        yield dict(pairs), " ".join(comment.split())


def nearest(wrong: str, known: Collection[str]) -> str:
    """Say which of the known names was meant, or all of them."""
    meant = meant_by(wrong, known)
    return f"did you mean {meant!r}?" if meant else f"there are {listed(known)}"
