"""A run's settings on disk: written once and whole, and held against those that it goes on with."""

from collections.abc import Mapping
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

from pncs_flower.files import write_whole
from pncs_flower.plain_text import counted, first_of

from ..config import Config, Scalar, default_run_config, format_toml
from ..folders import SETTINGS, check_folder, near_folder
from ..toml_file import read_toml

CHANGEABLE = (
    "num-rounds",  # more of them are wanted
    "resume",
    # Where something is: of the data and the weights the contents are compared.
    "output-dir",
    "data-dir",
    "weights",
    "cache-dir",
    "device",
    "tensorboard",
)
"""The settings that may be others when a run goes on. All others decide what comes out."""

_RUN = "run"
_ABOUT = ("release", "clients", "examples", "check")
_HEAD = f"# Written once, when the run began; what [{_RUN}] says shows that all of it is here.\n"
_REMEDY = (
    "going on with other settings would give another result. Put the file back as it was, or start "
    "the run anew in another folder"
)


def keep_settings(
    folder: Path,
    config: Config,
    clients: int | None = None,
    place: Mapping[str, Scalar] | None = None,
) -> None:
    """Write a run's settings if they are not there; else make sure that they are the same.

    ``place`` says where it computes, which changes no result: of a run that goes on it is as it was
    when the run began, and of one that has yet to do anything as it is given now.
    """
    if config.resume or (folder / SETTINGS).exists():
        refuse_other_settings(folder, config, clients)
        if config.resume or place is None:
            return
    from pncs_flower.strategies.resume.settings import installed_version

    settings = replace(config, resume=False).to_run_config()
    about: dict[str, Scalar] = {
        "release": installed_version("pncs-flower"),
        "clients": clients or 0,  # whoever begins it may not know
        "examples": _examples(config),
        **(place or {}),
    }
    about["check"] = _check(settings, about)
    text = f"{_HEAD}{format_toml(settings)}\n[{_RUN}]\n{format_toml(about)}"
    write_whole(folder / SETTINGS, text)


def read_settings(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what `keep_settings` wrote, settings and what is said of the run, if it is whole."""
    check_folder(folder, SETTINGS, maker="pncs run")
    file = folder / SETTINGS
    if not file.is_file():
        raise FileNotFoundError(
            f"{folder} holds no run to resume: it has no {SETTINGS}{near_folder(folder, SETTINGS)}"
        )
    try:
        found: dict[str, Any] = read_toml(file)
    except ValueError as error:
        raise ValueError(f"{error}: {_REMEDY}") from None
    about = found.pop(_RUN, None)
    has = about if isinstance(about, dict) else {}
    if not has or has.get("check") != _check(found, has):
        lacks = [key for key in default_run_config() if key not in found]
        lacks += [f"{key} in [{_RUN}]" for key in _ABOUT if key not in has]
        what = f"it lacks {first_of(lacks, 3)}" if lacks else "its check does not match"
        raise ValueError(
            f"{file} is cut off, was changed, or was written before releases were noted in it "
            f"({what}): {_REMEDY}"
        )
    return found, has


def refuse_other_settings(folder: Path, config: Config, clients: int | None = None) -> None:
    """Refuse to go on with other settings, data, weights or clients than a run was started with."""
    saved, about = read_settings(folder)
    # Settings that are newer than the run had their defaults.
    before = default_run_config() | saved
    other = [
        f"{key} is {value!r}, but it was started with {before[key]!r}"
        for key, value in config.to_run_config().items()
        if key not in CHANGEABLE and value != before[key]
    ]
    if clients and about["clients"] not in (0, clients):
        other.append(
            f"it is given {counted(clients, 'client')}, but it was started with {about['clients']}"
        )
    if not other and _examples(config) != about["examples"]:
        other.append(
            f"data-dir is {config.data_dir!r} and weights is {config.weights!r}, but it was "
            f"started with {before['data-dir']!r} and {before['weights']!r}, whose contents were "
            "others, or an earlier release made other examples of them"
        )
    if other:
        raise ValueError(
            f"the run in {folder} cannot go on: {'; '.join(other)}. Leave such settings out, or "
            "start another run in another folder"
        )


def _examples(config: Config) -> str:
    """Hash a run's examples; PyTorch is imported here, and not for what is refused before."""
    from ..task import inputs_fingerprint

    return inputs_fingerprint(config)


def _check(settings: Mapping[str, Any], about: Mapping[str, Any]) -> str:
    """Hash the settings and what is said of them."""
    said = {f"{_RUN}.{key}": value for key, value in about.items() if key != "check"}
    values = {**settings, **said}
    return blake2b(format_toml(values).encode(), digest_size=16).hexdigest()
