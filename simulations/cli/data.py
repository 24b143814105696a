"""`pncs data`: which data sets there are, whether they are here and sound, and how to get them."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..choices import CHOICES, HUB
from .console import out, progress_bar, said_plainly
from .options import PATH, Suggesting, names

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ..data.examples import Data

data = typer.Typer(cls=Suggesting, help="The data sets.", invoke_without_command=True)

_FOLDER = Annotated[
    str, typer.Option("--data-dir", help="Folder of the data set; empty: the usual one.")
]


@data.callback()
def _callback(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        list_()


@data.command("list")
def list_(data_dir: _FOLDER = "") -> None:
    """Say which data sets there are, and which of them are found."""
    from ..data.datasets import DATASETS, dataset_fingerprint  # NumPy takes a moment

    for name in DATASETS:
        try:
            dataset_fingerprint(name, data_dir)
            state = "found"
        except (OSError, ValueError, ModuleNotFoundError):
            state = f"not found; pncs data check {name} says how to have it"
        sizes = DATASETS[name].sizes
        held = f"{sizes[0]:>5} + {sizes[1]:>5} examples" if sizes else DATASETS[name].on_hub
        out.print(f"{name:<14} {held:<23}  {state}", soft_wrap=True)
    out.print(
        f"{HUB}NAME        any other of images or text on the Hugging Face hub", soft_wrap=True
    )


def _published(incomplete: str) -> list[str]:
    from ..data.datasets import DATASETS

    published = [name for name, each in DATASETS.items() if each.download or each.on_hub]
    return names(*published, HUB)(incomplete)


@data.command()
def get(
    name: Annotated[str, typer.Argument(autocompletion=_published)],
    data_dir: Annotated[Path, typer.Option(click_type=PATH, help="Folder to put it in.")] = Path(
        "data"
    ),
    address: Annotated[
        str, typer.Option("--from", help="A mirror, in place of where it is published.")
    ] = "",
) -> None:
    """Download a data set and check it; what is there and sound is not fetched again.

    NAME is one that pncs data list names, or any of the Hugging Face hub, such as hf:ylecun/mnist.
    """
    with said_plainly():
        from ..data.datasets import find_dataset
        from ..data.download import download
        from ..data.hub import fetch

        dataset = find_dataset(name)
        folder = data_dir.resolve()
        if dataset.on_hub:
            if address:
                raise ValueError("--from is not for the hub: set HF_ENDPOINT to a mirror of it")
            out.print(f"{dataset.on_hub}: {fetch(dataset, folder)}", soft_wrap=True)
        elif dataset.download:
            download(
                dataset,
                folder,
                lambda file, size: out.print(f"{file}: {size / 1e6:.1f} MB"),
                address,
            )
        else:
            raise ValueError(
                f"{name!r} comes with scikit-learn, and is not downloaded: pncs data check {name}"
            )
        out.print(f"Use it with: --data-dir {folder}", soft_wrap=True)


@data.command()
def check(
    name: Annotated[str, typer.Argument(autocompletion=names(*CHOICES["dataset"], HUB))],
    data_dir: _FOLDER = "",
    columns: Annotated[
        tuple[str, str, str],
        typer.Option(help="Input, label and client column, each empty to have it found (hub)."),
    ] = ("", "", ""),
    image_size: Annotated[int, typer.Option(help="As the setting image-size (hub).", min=0)] = 0,
) -> None:
    """Read a data set and count its examples; fails if it is not what it should be.

    NAME is one that pncs data list names, or hf:NAME.
    """
    with said_plainly():
        import numpy as np

        from ..data.datasets import dataset_fingerprint, find_dataset, load_dataset
        from ..data.examples import classes_of
        from ..data.hub_columns import Reading

        folder = str(Path(data_dir).expanduser()) if data_dir else ""
        given = name, folder, Reading(*columns, image_size)
        with progress_bar("reading"):
            found, sizes = load_dataset(*given), find_dataset(name).sizes
        shape = "x".join(map(str, found.train.shape[1:]))
        out.print(f"{found.title}: {shape}{' characters' if found.kind == 'text' else ''}")
        for part, labels, size in (
            ("training", found.train_labels, sizes and sizes[0]),
            ("test", found.test_labels, sizes and sizes[1]),
        ):
            counts = np.bincount(classes_of(labels), minlength=found.num_classes)
            if size:
                _check_counts(name, found, part, counts, size)
            if found.num_classes:
                about = f"{counts.min()} to {counts.max()} of a class"
            else:
                about = f"labels from {labels.min():.2f} to {labels.max():.2f}"
            out.print(f"{part}: {len(labels)} examples, {about}")
        if found.clients is not None:
            counts = np.bincount(found.clients)
            out.print(
                f"clients: {len(counts)}, with {counts.min()} to {counts.max()} training examples"
            )
        with progress_bar("hashing"):
            fingerprint = dataset_fingerprint(*given)
        out.print(f"fingerprint {fingerprint}")


def _check_counts(
    name: str, found: "Data", part: str, counts: "NDArray[np.int64]", size: int
) -> None:
    """Refuse a part that is not what was published."""
    examples, labels = found.train, found.train_labels
    if part == "test":
        examples, labels = found.test, found.test_labels
    sound = len(counts) == (found.num_classes or len(counts)) and counts.all()
    if not (sound and len(examples) == len(labels) == size):
        raise ValueError(
            f"{name} should have {size} {part} examples of {found.num_classes} classes, but has "
            f"{len(examples)} {found.kind} and {len(labels)} labels, by class {counts.tolist()}: "
            "fetch it again"
        )
