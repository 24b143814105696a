"""A Ray cluster of several machines: each is given a run's code and files, and is checked.

A machine needs Ray, Flower, NumPy and PyTorch, the same as here. Code travels as Ray's working
folder; data, weights and features of frozen layers are copied into a folder of the machine's own,
under names that say what is in them, where the next run finds them.
"""

import logging
import os
import shutil
import tarfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, NamedTuple

import pncs_flower
from pncs_flower.plain_text import in_one_line, one_line, without_colours
from pncs_flower.strategies.resume.settings import installed_version

from ..config import APP_DIRECTORY, Agreeing, Config, Scalar
from ..data.datasets import dataset_files, dataset_fingerprint
from ..machine.scratch import scratch_folder
from ..machine.signals import keeping_handlers
from ..machine.surroundings import OF_RAY
from ..models.frozen import frozen_folders
from ..models.weights import weights_fingerprint
from ..task import inputs_fingerprint
from ..whole_folder import have_folder
from .preflight import Machine, check_run

COPIES = "~/.cache/pncs-flower/copies"
"""Where each machine has the files of runs on a cluster, each folder named by its contents."""

_PART = 64 * 2**20  # bytes of an archive that are sent at once
_SAME = ("flwr", "numpy", "torch")  # whose versions decide about the bits
_INSTALL = "install pncs-flower[simulation] there with the versions of this machine"

Files = Mapping[str, Path]


class Archive(NamedTuple):
    """A folder that travels: the files in it, and references to the parts of a tar archive."""

    files: Collection[str]
    parts: Sequence[Any]


class UnfitNodeError(ValueError):
    """A node that cannot do anything of a run, or not with the bits of the others."""


@dataclass(frozen=True)
class Parcel:
    """What all machines of a cluster are given; it is handed to each that has something to do."""

    archives: Mapping[str, Archive]
    places: Mapping[Agreeing, Mapping[str, Scalar]]
    versions: Mapping[str, str]  # of the packages that must be the same everywhere

    def accept(self) -> None:
        """Make this machine ready, which may have come after `prepare`; or raise UnfitNodeError."""
        import ray

        name = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
        _refuse_other_versions(name, {key: installed_version(key) for key in _SAME}, self.versions)
        try:
            self.unpack()
        except Exception as error:  # a full disk
            raise UnfitNodeError(f"node {name} of the Ray cluster: {one_line(error)}") from None

    def unpack(self) -> None:
        """Write the folders that are not on this machine."""
        for name, (files, parts) in self.archives.items():
            _lay(name, files, partial(_unpack, parts))

    def moved(self, config: Config) -> Config:
        """Return settings with the paths of the copies."""
        return _with(config, self.places[config.of_inputs()])


@contextmanager
def session(address: str | None, **options: Any) -> Iterator[None]:
    """Have Ray until the end of the block: a cluster, or one of our own."""
    for name, value in OF_RAY.items():
        os.environ.setdefault(name, value)
    import ray

    try:
        with keeping_handlers():
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **options)
    except (ConnectionError, RuntimeError, ValueError) as error:
        if address == "local":
            raise
        raise ValueError(
            f"RAY_ADDRESS = {address} is no cluster that can be joined "
            f"({in_one_line(str(error))}): start one (ray start --head), give its HOST:PORT, or "
            "unset RAY_ADDRESS to compute on this machine"
        ) from None
    try:
        yield
    finally:
        ray.shutdown()


@contextmanager
def joined(address: str, strategies: Iterable[str] = ()) -> Iterator[None]:
    """Join a cluster, whose workers then have our code, and that of rules of a user's."""
    with scratch_folder("code-") as code:
        gather_code(code, strategies)
        with session(address, runtime_env={"working_dir": str(code)}):
            yield


def gather_code(folder: Path, strategies: Iterable[str] = ()) -> None:
    """Put the library and rules of a user's (``module:Rule``) where all of it can be imported."""
    library, no_cache = folder / "pncs_flower", shutil.ignore_patterns("__pycache__")
    sources = {library: Path(pncs_flower.__file__).parent}
    for name in ("strategies", "clients", "simulations"):
        sources[library / name] = APP_DIRECTORY.parent / name
    for module in {each.partition(":")[0].partition(".")[0] for each in strategies if ":" in each}:
        spec = find_spec(module)
        if spec is not None and spec.submodule_search_locations:
            sources[folder / module] = Path(spec.submodule_search_locations[0])
        elif spec is not None and spec.origin:
            shutil.copy(spec.origin, folder)
    for target, source in sources.items():
        shutil.copytree(source, target, ignore=no_cache, dirs_exist_ok=True)


def machines() -> list[Machine]:
    """Return what each machine of the cluster has, joined before."""
    return [
        Machine(int(has.get("CPU", 0)), int(has.get("GPU", 0)))
        for has in (node["Resources"] for node in _nodes())
    ]


def alive() -> set[str]:
    """Return the nodes of the cluster that are there."""
    return {str(node["NodeID"]) for node in _nodes()}


def on_any_machine(config: Config) -> Config:
    """Return settings whose paths are right on every machine that has been prepared."""
    return _with(config, _places(config))


def prepare(configs: Iterable[Config]) -> Parcel:
    """Copy what runs read to every machine that lacks it, and check there what can be checked."""
    distinct = {(config.of_inputs(), config.strategy): config for config in configs}
    archives: dict[str, Archive] = {}
    for config in distinct.values():
        for name, files in _read(config).values():
            if name not in archives:
                _lay(name, files, partial(_link, files))
                archives[name] = Archive([*files], _pack(files))
    places = {key: _places(config) for (key, _), config in distinct.items()}
    here = {package: installed_version(package) for package in _SAME}
    parcel = Parcel(archives, places, here)
    prints = {config: inputs_fingerprint(config) for config in distinct.values()}

    def versions() -> dict[str, str]:  # sent by its code, so that it needs nothing there
        from importlib.metadata import version

        return {package: version(package) for package in _SAME}

    for name, there in _on_each_node(versions):
        _refuse_other_versions(name, there, here)
    _on_each_node(_check_here, parcel, prints)
    return parcel


def _refuse_other_versions(name: str, there: Mapping[str, str], here: Mapping[str, str]) -> None:
    other = [f"{key} {there[key]}, not {has}" for key, has in here.items() if has != there[key]]
    if other:
        raise UnfitNodeError(
            f"node {name} of the Ray cluster has {', '.join(other)}: {_INSTALL}, or results would "
            "depend on where a client is"
        )


def _check_here(parcel: Parcel, prints: Mapping[Config, str]) -> None:
    """On a node: have the files, and find that what is to run can."""
    parcel.unpack()
    for config, fingerprint in prints.items():
        own = parcel.moved(config)
        if inputs_fingerprint(own) != fingerprint:
            raise ValueError(f"its copies in {COPIES} are damaged: delete that folder there")
        check_run(own)


def _with(config: Config, places: Mapping[str, Scalar]) -> Config:
    return Config.from_run_config({**config.to_run_config(), **places})


def _places(config: Config) -> dict[str, Scalar]:
    """Return the settings that are paths as they are where there are copies."""
    return {
        key: f"{COPIES}/{name}" + ("/" + next(iter(files)) if key == "weights" else "")
        for key, (name, files) in _read(config).items()
    }


def _nodes() -> list[dict[str, Any]]:
    import ray

    return [node for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]


def _on_each_node(task: Callable[..., Any], *arguments: Any) -> list[tuple[str, Any]]:
    """Call a function on all machines at once, and return their addresses and what it returns."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    remote, asked = ray.remote(num_cpus=0, max_retries=0)(task), {}
    for node in _nodes():
        there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        reference = remote.options(scheduling_strategy=there).remote(*arguments)
        asked[reference] = node["NodeManagerAddress"]
    answers = []
    for reference, name in asked.items():
        try:
            answers.append((name, ray.get(reference)))
        except ray.exceptions.RayError as error:
            raise ValueError(f"node {name} of the Ray cluster: {_reason(error)}") from None
    return answers


def _read(config: Config) -> dict[str, tuple[str, Files]]:
    """Return the files that a setting names, with the name of the folder that they travel in."""
    found: dict[str, tuple[str, Files]] = {}
    if files := dataset_files(config.dataset, config.data_dir):
        found["data-dir"] = (f"data-{dataset_fingerprint(config.dataset, config.data_dir)}", files)
    if config.has_frozen_layers:
        own = weights_fingerprint(config.weights, config.model)
        found["weights"] = (f"weights-{own}", {"weights.pth": Path(config.weights).expanduser()})
        folders = frozen_folders(config)
        # With the checksums: another machine's features may differ in their last bits.
        about = b"".join((folder / "about.json").read_bytes() for folder in folders)
        files = {f"{each.parent.name}/{each.name}": each for f in folders for each in f.iterdir()}
        found["cache-dir"] = (f"features-{blake2b(about, digest_size=16).hexdigest()}", files)
    return found


def _lay(name: str, files: Collection[str], fill: Callable[[Path], None]) -> None:
    """Have a folder of copies filled, if some of its files are not there."""
    folder = Path(COPIES).expanduser() / name
    # One of links may be broken.
    have_folder(folder, lambda: all((folder / file).is_file() for file in files), fill)


def _link(files: Files, folder: Path) -> None:
    for name, path in files.items():
        link = folder / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(path.resolve())


def _pack(files: Files) -> list[Any]:
    import ray

    with TemporaryFile(dir=Path(COPIES).expanduser()) as content:
        with tarfile.open(fileobj=content, mode="w", dereference=True) as archive:
            for name, path in files.items():
                archive.add(path, name)
        content.seek(0)
        return [ray.put(part) for part in iter(lambda: content.read(_PART), b"")]


def _unpack(parts: Sequence[Any], folder: Path) -> None:
    import ray

    with TemporaryFile(dir=folder.parent) as content:
        for part in parts:
            content.write(ray.get(part))
        content.seek(0)
        with tarfile.open(fileobj=content) as archive:
            archive.extractall(folder, filter="data")


def _reason(error: Exception) -> str:
    """Say what a node lacks, or what went wrong there."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, ImportError):  # PackageNotFoundError too
        return f"{one_line(cause)}: {_INSTALL}"
    return one_line(cause) if isinstance(cause, Exception) else without_colours(str(error))
