"""`pncs data`: which data sets there are, whether they are here and sound, and how to get them."""

from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from ..data.datasets import DATASETS, dataset_fingerprint, load_dataset
from ..data.download import download
from .console import out, said_plainly

data = typer.Typer(help="The data sets.", no_args_is_help=True)

_PUBLISHED = [name for name, dataset in DATASETS.items() if dataset.download]

_FOLDER = Annotated[
    str, typer.Option("--data-dir", help="Folder of the data set; empty: the usual one.")
]


@data.command("list")
def list_(data_dir: _FOLDER = "") -> None:
    """Say which data sets there are, and which of them are found."""
    for name in DATASETS:
        try:
            dataset_fingerprint(name, data_dir)
            state = "found"
        except (OSError, ValueError):
            state = f"not found; pncs data check {name} says how to have it"
        train, test = DATASETS[name].sizes
        out.print(f"{name:<14} {train:>5} + {test:>5} examples  {state}", soft_wrap=True)


@data.command()
def get(
    name: Annotated[str, typer.Argument(help=f"{' or '.join(_PUBLISHED)}.")],
    data_dir: Annotated[Path, typer.Option(help="Folder to put it in.")] = Path("data"),
    address: Annotated[
        str, typer.Option("--from", help="A mirror, in place of where it is published.")
    ] = "",
) -> None:
    """Download a data set and check it; what is there and sound is not fetched again."""
    with said_plainly():
        if name not in _PUBLISHED:
            raise ValueError(f"{name!r} cannot be downloaded: there are {', '.join(_PUBLISHED)}")
        folder = data_dir.expanduser().resolve()
        download(
            DATASETS[name],
            folder,
            lambda file, size: out.print(f"{file}: {size / 1e6:.1f} MB"),
            address,
        )
        out.print(f"Use it with: --data-dir {folder}", soft_wrap=True)


@data.command()
def check(name: str, data_dir: _FOLDER = "") -> None:
    """Read a data set and count its examples; fails if it is not what it should be."""
    with said_plainly():
        found = load_dataset(name, str(Path(data_dir).expanduser()) if data_dir else "")
        out.print(f"{found.title}: {'x'.join(map(str, found.train_images.shape[1:]))}")
        train, test = DATASETS[name].sizes
        for part, images, labels, size in (
            ("training", found.train_images, found.train_labels, train),
            ("test", found.test_images, found.test_labels, test),
        ):
            counts = np.bincount(labels, minlength=found.num_classes)
            sound = len(counts) == found.num_classes and counts.all()
            if not (sound and len(images) == len(labels) == size):
                raise ValueError(
                    f"{name} should have {size} {part} examples of {found.num_classes} classes, "
                    f"but has {len(images)} images and {len(labels)} labels, by class "
                    f"{counts.tolist()}: fetch it again"
                )
            out.print(f"{part}: {size} examples, {counts.min()} to {counts.max()} of a class")
        out.print(f"fingerprint {dataset_fingerprint(name, data_dir)}")
