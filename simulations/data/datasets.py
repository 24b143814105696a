"""The data sets by name. A new one is a file beside this one, and a name here and in `CHOICES`."""

from functools import cache
from hashlib import blake2b
from pathlib import Path

from ..choices import HUB, did_you_mean
from ..how_far import tell
from .cifar10 import CIFAR10
from .diabetes import DIABETES
from .digits import DIGITS
from .examples import Data, Dataset
from .fashion_mnist import FASHION_MNIST
from .hub import PRESETS, hub_dataset
from .hub_columns import Reading
from .languages import LANGUAGES

_OURS = (DIGITS, FASHION_MNIST, CIFAR10, DIABETES, LANGUAGES)

DATASETS = {dataset.name: dataset for dataset in _OURS}
DATASETS |= {name: hub_dataset(name) for name in PRESETS}
"""The data sets with a name of their own; all others of the hub are ``hf:NAME``."""


def find_dataset(name: str, reading: Reading | None = None) -> Dataset:
    """Return a data set by its name; ``reading`` is how one of the hub is to be read."""
    if name in PRESETS or name.startswith(HUB):
        return hub_dataset(name, reading or Reading())
    if name not in DATASETS:
        raise ValueError(
            f"no data set is called {name!r}: there are {', '.join(DATASETS)}, and {HUB}NAME "
            f"for any other of the Hugging Face hub{did_you_mean(name, DATASETS)}"
        )
    return DATASETS[name]


@cache
def load_dataset(name: str, data_dir: str = "", reading: Reading | None = None) -> Data:
    """Load a data set from this machine; nothing is downloaded, but an error says how to get it."""
    dataset = find_dataset(name, reading)
    return dataset.load(_folder(dataset, data_dir))


@cache
def dataset_fingerprint(name: str, data_dir: str = "", reading: Reading | None = None) -> str:
    """Hash a data set's files without decoding them: the same wherever they are."""
    dataset = find_dataset(name, reading)
    hashed = blake2b(digest_size=16)
    if dataset.files is None:
        data = load_dataset(name, data_dir, reading)  # as a run does, so it is read once
        hashed.update(data.train.tobytes() + data.train_labels.tobytes())
        return hashed.hexdigest()
    files = dataset.files(_folder(dataset, data_dir))
    for count, (label, path) in enumerate(files.items(), 1):
        content = path.read_bytes()
        hashed.update(f"{label} {len(content)}\n".encode())
        hashed.update(content)
        tell(f"files of {name}", count, len(files))
    if dataset.on_hub:
        hashed.update(repr(reading or Reading()).encode())
    return hashed.hexdigest()


def dataset_files(name: str, data_dir: str = "") -> dict[str, Path]:
    """Return the files that a data set is read from, by their paths below its folder."""
    dataset = find_dataset(name)
    folder = _folder(dataset, data_dir)
    files = dataset.files(folder).values() if dataset.files else ()
    return {str(path.relative_to(folder)): path for path in files}


def _folder(dataset: Dataset, data_dir: str) -> Path:
    return Path(data_dir).expanduser() if data_dir else dataset.usual_folder
