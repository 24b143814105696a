"""The data sets by name. A new one is a file beside this one, and a line in `DATASETS`."""

from functools import cache
from hashlib import blake2b
from pathlib import Path

from .cifar10 import CIFAR10
from .digits import DIGITS
from .fashion_mnist import FASHION_MNIST
from .images import Dataset, ImageData

DATASETS = {dataset.name: dataset for dataset in (DIGITS, FASHION_MNIST, CIFAR10)}


@cache
def load_dataset(name: str, data_dir: str = "") -> ImageData:
    """Load a data set from this machine; nothing is downloaded, but an error says how to get it."""
    dataset, folder = _find(name, data_dir)
    return dataset.load(folder)


@cache
def dataset_fingerprint(name: str, data_dir: str = "") -> str:
    """Hash a data set's files without decoding them: the same wherever they are."""
    dataset, folder = _find(name, data_dir)
    hashed = blake2b(digest_size=16)
    if dataset.files is None:
        data = load_dataset(name, data_dir)
        hashed.update(data.train_images.tobytes() + data.train_labels.tobytes())
        return hashed.hexdigest()
    for label, path in dataset.files(folder).items():
        content = path.read_bytes()
        hashed.update(f"{label} {len(content)}\n".encode())
        hashed.update(content)
    return hashed.hexdigest()


def dataset_files(name: str, data_dir: str = "") -> dict[str, Path]:
    """Return the files that a data set is read from, by their paths below its folder."""
    dataset, folder = _find(name, data_dir)
    files = dataset.files(folder).values() if dataset.files else ()
    return {str(path.relative_to(folder)): path for path in files}


def _find(name: str, data_dir: str) -> tuple[Dataset, Path]:
    if name not in DATASETS:
        raise ValueError(f"no data set is called {name!r}: there are {', '.join(DATASETS)}")
    dataset = DATASETS[name]
    return dataset, Path(data_dir).expanduser() if data_dir else dataset.usual_folder
