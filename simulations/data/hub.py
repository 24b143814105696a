"""Any image or text data set of the Hugging Face hub, from a folder in one of the hub's formats."""

import json
import os
import tempfile
from collections.abc import Mapping
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from ..choices import HUB
from ..timeouts import HUB_ANSWERS
from ..validation import in_plain_words
from ..whole_folder import have_folder
from .examples import Data, Dataset
from .hub_columns import Reading, read_columns

PRESETS: Mapping[str, tuple[str, str, Reading]] = {
    "cifar100": ("CIFAR-100", "uoft-cs/cifar100", Reading("img", "fine_label")),
    "femnist": ("FEMNIST", "flwrlabs/femnist", Reading("image", "character", "writer_id")),
    "shakespeare": ("Shakespeare", "flwrlabs/shakespeare", Reading("x", "y", "character_id")),
}
"""By their names here: title, name on the hub, columns."""

# Of a folder in the format of the package datasets, and files in which the hub has data sets.
_SAVED = ("dataset_dict.json", "state.json")
_FILES = ("*.parquet", "*.csv", "*.jsonl", "*.json", "*.arrow")
_PLACES = (".", "data", "train")
_ARRAYS = ("train", "train_labels", "test", "test_labels", "clients")
# Of the arrays below: another edition reads the same files anew.
_EDITION = 1


def hub_dataset(name: str, reading: Reading | None = None) -> Dataset:
    """Return a data set ``hf:NAME``, ``hf:NAME:SUBSET`` or one of `PRESETS`."""
    reading = reading or Reading()
    if name in PRESETS:
        title, on_hub, usual = PRESETS[name]
        chosen = {key: own for key, own in reading._asdict().items() if own}
        reading = usual._replace(**chosen)
    else:
        title = on_hub = name.removeprefix(HUB)
    parts = on_hub.replace(":", "/").split("/")
    if len(parts) > 3 or not all(parts) or {".", ".."} & {*parts} or "\\" in on_hub:
        raise ValueError(
            f"dataset = {name!r} must be {HUB} and a name of the Hugging Face hub, such as "
            f"{HUB}ylecun/mnist, or {HUB}NAME:SUBSET"
        )
    return Dataset(
        name,
        None,
        partial(_load, name, title, reading),
        Path("data"),
        partial(_files, name),
        on_hub=on_hub,
    )


def fetch(dataset: Dataset, folder: Path) -> Path:
    """Download a data set from the hub, and leave it where it is read from, whole or not at all."""
    name, _, subset = dataset.on_hub.partition(":")
    _reach(dataset)
    import datasets

    place = folder / _below(dataset.on_hub)

    def write(new: Path) -> None:
        try:
            datasets.load_dataset(name, subset or None).save_to_disk(str(new))
        except (ValueError, OSError, datasets.exceptions.DatasetsError) as error:
            raise ValueError(f"{name} cannot be had from the hub: {error}") from None

    have_folder(place, lambda: place.is_dir() and any(place.iterdir()), write)
    return place


def _reach(dataset: Dataset) -> None:
    """Look whether the hub answers: its own library would try for half a minute."""
    from urllib.error import HTTPError, URLError  # takes a moment, and --help needs none
    from urllib.request import urlopen

    site = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    try:
        with urlopen(site, timeout=HUB_ANSWERS):
            pass
    except HTTPError:
        pass  # an answer
    except (URLError, OSError) as error:
        reason = getattr(error, "reason", None) or type(error).__name__
        raise OSError(
            f"{site} cannot be reached ({reason}): is there a network? Or "
            f"{_elsewhere(dataset.name, dataset.on_hub, Path('data'))}"
        ) from None


def _below(on_hub: str) -> Path:
    """Return where a data set is in the data folder."""
    return Path(*on_hub.replace(":", "/").split("/"))


def _elsewhere(name: str, on_hub: str, folder: Path) -> str:
    repository = on_hub.partition(":")[0]
    return (
        f"where there is one: pncs data get {name} (or: hf download {repository} --repo-type "
        f"dataset --local-dir {repository}), and put that folder here as "
        f"{folder / _below(on_hub)}, or set data-dir to it"
    )


def _find(name: str, folder: Path) -> Path:
    """Return the folder of a data set: in the data folder, or that folder itself."""
    on_hub = PRESETS[name][1] if name in PRESETS else name.removeprefix(HUB)
    below = folder / _below(on_hub)
    if below.is_dir() and any(below.iterdir()):
        return below
    if any((folder / each).is_file() for each in _SAVED):
        return folder
    if any(next((folder / place).glob(kind), None) for place in _PLACES for kind in _FILES):
        return folder
    raise FileNotFoundError(
        f"{on_hub} is not in {folder}. Two ways to have it:\n"
        f"  1. pncs data get {name}, and set data-dir to {Path('data').resolve()}\n"
        f"  2. without a network here, {_elsewhere(name, on_hub, folder)}"
    )


def _files(name: str, folder: Path) -> dict[str, Path]:
    root = _find(name, folder)
    below = {path.relative_to(root): path for path in sorted(root.rglob("*")) if path.is_file()}
    return {
        each.as_posix(): path
        for each, path in below.items()
        if not any(part.startswith(".") for part in each.parts)
    }


def _load(name: str, title: str, reading: Reading, folder: Path) -> Data:
    """Return the examples, which are read once and then mapped into memory."""
    files = _files(name, folder)
    hashed = blake2b(f"{_EDITION} {reading}".encode(), digest_size=12)
    for label, path in files.items():
        about = path.stat()
        hashed.update(f"{label} {path.resolve()} {about.st_size} {about.st_mtime_ns}\n".encode())
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "pncs-flower"
    kept = cache / f"hub-{hashed.hexdigest()}"

    def write(new: Path) -> None:
        with tempfile.TemporaryDirectory() as work:
            data = _read(_find(name, folder), work, reading, title)
        for array in _ARRAYS:
            if (values := getattr(data, array)) is not None:
                np.save(new / f"{array}.npy", values, allow_pickle=False)
        about = {"num_classes": data.num_classes, "max_value": data.max_value, "kind": data.kind}
        (new / "about.json").write_text(json.dumps({**about, "title": data.title}), "utf-8")

    have_folder(kept, kept.is_dir, write)
    try:
        arrays = {
            path.stem: np.load(path, mmap_mode="r", allow_pickle=False)
            for path in kept.glob("*.npy")
        }
        return Data(**arrays, **json.loads((kept / "about.json").read_text("utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise ValueError(
            f"what was read of {name} into {kept} is damaged ({error}): delete that folder, and it "
            "is read again"
        ) from None


def _read(root: Path, work: str, reading: Reading, title: str) -> Data:
    parts = _open(root, work)
    with in_plain_words(f"{root}: "):
        return read_columns(parts, reading, title)


def _open(root: Path, work: str) -> dict[str, Any]:
    """Return the parts of a data set by their names, as the package datasets has them."""
    try:
        import datasets
    except ModuleNotFoundError:
        raise ValueError(
            "data sets of the Hugging Face hub need the package datasets: pip install "
            "'pncs-flower[hub]'"
        ) from None
    shown = datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        if any((root / each).is_file() for each in _SAVED):
            found = datasets.load_from_disk(str(root))
        else:
            found = datasets.load_dataset(str(root), cache_dir=work)
    except (OSError, ValueError, LookupError, datasets.exceptions.DatasetsError) as error:
        raise ValueError(f"{root} cannot be read as a data set of the hub: {error}") from None
    finally:
        if not shown:
            datasets.enable_progress_bars()
    return dict(found) if isinstance(found, dict) else {"train": found}
