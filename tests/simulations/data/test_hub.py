"""Data sets of the Hugging Face hub, from small folders in its formats; nothing is fetched."""

import json
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from pncs_flower.simulations.cli import app
from pncs_flower.simulations.client_app import app as client_app
from pncs_flower.simulations.config import Config, default_run_config
from pncs_flower.simulations.data import hub
from pncs_flower.simulations.data.datasets import (
    dataset_files,
    dataset_fingerprint,
    find_dataset,
    load_dataset,
)
from pncs_flower.simulations.data.hub_columns import Reading, read_columns
from pncs_flower.simulations.run.in_process import InProcessGrid
from pncs_flower.simulations.run.training import train
from pncs_flower.simulations.sweep.sweep import Sweep
from pncs_flower.simulations.task import load_inputs

datasets = pytest.importorskip("datasets", reason="needs pncs-flower[hub]")
Image = pytest.importorskip("PIL.Image", reason="needs pncs-flower[hub]")

PLAY = "".join(chr(97 + (i * i) % 7) for i in range(400))


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep what is read in a cache of the test's own, and have no network."""

    def refuse(*_: Any) -> None:
        raise OSError("no network")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(socket.socket, "connect", refuse)


def pictures(count: int, size: tuple[int, int] = (4, 4), mode: str = "L") -> list[Any]:
    return [Image.new(mode, size, i if mode == "L" else (i, 0, 9)) for i in range(count)]


def table(columns: Mapping[str, Sequence[Any]], **features: Any) -> Any:
    known = datasets.Dataset.from_dict(dict(columns)).features
    return datasets.Dataset.from_dict(dict(columns), datasets.Features({**known, **features}))


def femnist(clients: int = 3, each: int = 20) -> Any:
    count = clients * each
    return table(
        {
            "image": pictures(count),
            "writer_id": [f"f{i % clients:04}" for i in range(count)],
            "hsf_id": [0] * count,
            "character": [i % 5 for i in range(count)],
        },
        image=datasets.Image(),
        character=datasets.ClassLabel(num_classes=62),
    )


def shakespeare(clients: int = 3, each: int = 20) -> Any:
    starts = range(each)
    rows = [(f"play_{c}", PLAY[s : s + 80], PLAY[s + 80]) for c in range(clients) for s in starts]
    return table(dict(zip(("character_id", "x", "y"), zip(*rows, strict=True), strict=True)))


def test_femnist_has_clients_and_a_test_part_of_their_last_examples(tmp_path: Path) -> None:
    datasets.DatasetDict(train=femnist()).save_to_disk(tmp_path / "flwrlabs" / "femnist")
    data = load_dataset("femnist", str(tmp_path))
    assert data.train.shape == (54, 1, 4, 4)
    assert data.num_classes == 62
    assert data.clients is not None
    assert np.bincount(data.clients).tolist() == [18, 18, 18]
    assert sorted(data.test[:, 0, 0, 0].tolist()) == list(range(54, 60))  # two of each writer
    assert data.train[:, 0, 0, 0].tolist() == list(range(54))


@pytest.mark.parametrize("form", ["parquet", "csv", "json"])
def test_shakespeare_is_read_from_each_format(tmp_path: Path, form: str) -> None:
    place = tmp_path / "data"
    place.mkdir()
    getattr(shakespeare(), f"to_{form}")(place / f"train.{form}")
    data = load_dataset("shakespeare", str(tmp_path))
    letters = sorted(set(PLAY))
    assert data.kind == "text"
    assert data.train.shape == (54, 80)
    assert "".join(letters[code - 1] for code in data.train[1]) == PLAY[1:81]
    assert letters[int(data.train_labels[1])] == PLAY[81]
    # What is to be guessed is no training example's, neither to be guessed nor before it.
    assert data.test_labels.tolist()[:2] == [letters.index(PLAY[80 + i]) for i in (18, 19)]


def test_text_without_labels_is_cut_into_windows(tmp_path: Path) -> None:
    table({"text": [PLAY * 5, "short"], "id": [1, 2]}).to_parquet(tmp_path / "train.parquet")
    data = load_dataset("hf:me/plays", str(tmp_path))
    windows = (len(PLAY) * 5 - 1) // 80
    assert len(data.train) + len(data.test) == windows
    assert data.train.shape[1:] == (80,)
    letters = " " + "".join(sorted(set(PLAY + "short")))
    assert letters[int(data.train_labels[2])] == (PLAY * 5)[3 * 80]


def test_short_texts_come_last_in_their_window_and_rare_letters_share_a_code(
    tmp_path: Path,
) -> None:
    many = "".join(map(chr, range(200, 500)))
    texts = ["ab", many + "ab" * 5, "b", "a"] * 10
    table({"text": texts, "label": ["x", "y"] * 20}).to_csv(tmp_path / "train.csv", index=False)
    data = load_dataset("hf:reviews", str(tmp_path))
    assert data.num_classes == 2
    assert data.train.shape[1] == 256  # all beyond is left out
    assert data.train.dtype == np.uint8
    assert data.train[0].tolist() == [0] * 254 + [1, 2]


def test_cifar100_has_its_test_part_and_its_fine_labels(tmp_path: Path) -> None:
    def part(count: int) -> Any:
        return table(
            {
                "img": pictures(count, (32, 32), "RGB"),
                "fine_label": range(count),
                "coarse_label": [i // 5 for i in range(count)],
            },
            img=datasets.Image(),
            fine_label=datasets.ClassLabel(num_classes=100),
            coarse_label=datasets.ClassLabel(num_classes=20),
        )

    both = datasets.DatasetDict(train=part(7), test=part(3))
    both.save_to_disk(tmp_path / "uoft-cs" / "cifar100")
    data = load_dataset("cifar100", str(tmp_path))
    assert data.train.shape == (7, 3, 32, 32)
    assert data.train[:, :, 0, 0].tolist() == [[i, 0, 9] for i in range(7)]
    assert (data.test_labels.tolist(), data.num_classes) == ([0, 1, 2], 100)
    coarse = load_dataset("cifar100", str(tmp_path), Reading(label="coarse_label"))
    assert (coarse.train_labels.tolist(), coarse.num_classes) == ([0] * 5 + [1] * 2, 20)
    with pytest.raises(ValueError, match="set label-column to one of fine_label, coarse_label"):
        load_dataset("hf:uoft-cs/cifar100", str(tmp_path))


def test_a_test_part_without_labels_is_passed_over(tmp_path: Path) -> None:
    label = datasets.ClassLabel(num_classes=2)
    parts = {
        "train": table({"sentence": ["a", "b"], "label": [0, 1]}, label=label),
        "test": table({"sentence": ["c"], "label": [-1]}, label=label),
        "validation": table({"sentence": ["d", "d"], "label": [1, 1]}, label=label),
    }
    datasets.DatasetDict(parts).save_to_disk(tmp_path)
    assert load_dataset("hf:glue:sst2", str(tmp_path)).test_labels.tolist() == [1, 1]


def test_images_of_several_sizes_are_to_be_resized(tmp_path: Path) -> None:
    images = [*pictures(10), *pictures(10, (6, 5))]
    rows = table({"image": images, "label": [0, 1] * 10}, image=datasets.Image())
    datasets.DatasetDict(train=rows, test=rows).save_to_disk(tmp_path)
    with pytest.raises(ValueError, match=r"image 10 is 6x5, but the first is 4x4: set image-size"):
        load_dataset("hf:photos", str(tmp_path))
    assert load_dataset("hf:photos", str(tmp_path), Reading(image_size=8)).train.shape[1:] == (
        1,
        8,
        8,
    )


def test_a_folder_of_images_by_class_is_read(tmp_path: Path) -> None:
    for place, image in enumerate(pictures(40, mode="RGB")):
        folder = tmp_path / "me" / "pets" / "train" / ("cat", "dog")[place % 2]
        folder.mkdir(parents=True, exist_ok=True)
        image.save(folder / f"{place:02}.png")
    data = load_dataset("hf:me/pets", str(tmp_path))
    assert data.train.shape == (36, 3, 4, 4)
    assert np.bincount(data.test_labels).tolist() == [2, 2]


@pytest.mark.parametrize(
    ("columns", "reading", "problem"),
    [
        ({"a": [1.5], "b": [2]}, {}, r"no column of images or text .* a \(float64\), b \(int64\)"),
        ({"a": ["x"], "b": ["y"]}, {}, "set input-column to one of a, b"),
        ({"a": ["x"], "label": [0.5]}, {}, "has float64, but labels are classes"),
        ({"a": ["x", None], "label": [0, 1]}, {}, "'a' has no value in row 1, of 2"),
        ({"a": ["x"]}, {"client": "c"}, r"client-column = 'c', but the columns are a \(string\)"),
        ({"a": ["x"]}, {}, "no window of 80 characters"),
        ({"a": ["", ""], "label": [0, 1]}, {}, "the texts of the column 'a' are all empty"),
        ({"a": ["x"] * 9, "label": [0] * 9}, {}, "9 examples are too few to hold back a tenth"),
    ],
)
def test_what_cannot_be_read_names_the_columns(
    tmp_path: Path, columns: dict[str, list[Any]], reading: dict[str, str], problem: str
) -> None:
    table(columns).to_parquet(tmp_path / "train.parquet")
    with pytest.raises(ValueError, match=problem):
        load_dataset("hf:odd", str(tmp_path), Reading(**reading))


@pytest.mark.parametrize(("train", "test"), [(0, 2), (2, 0)])
@pytest.mark.parametrize("image", [True, False])
def test_a_part_without_examples_is_named(train: int, test: int, image: bool) -> None:
    def rows(count: int) -> Any:
        kind = datasets.Image() if image else datasets.Value("string")
        values = pictures(count) if image else ["text"] * count
        return table({"in": values, "label": [0] * count}, **{"in": kind})

    parts = {"train": rows(train), "test": rows(test)}
    with pytest.raises(ValueError, match=f"part '{'test' if train else 'train'}' has no examples"):
        read_columns(parts, Reading(), "odd")


def test_what_is_damaged_is_named(tmp_path: Path) -> None:
    (tmp_path / "train.parquet").write_bytes(b"no parquet")
    with pytest.raises(ValueError, match=f"{tmp_path} cannot be read as a data set of the hub"):
        load_dataset("hf:odd", str(tmp_path))


def test_what_is_absent_says_at_once_what_to_fetch_and_where_to_put_it(tmp_path: Path) -> None:
    start = time.monotonic()
    with pytest.raises(FileNotFoundError) as raised:
        load_dataset("femnist", str(tmp_path))
    assert time.monotonic() - start < 2
    for wanted in (
        "flwrlabs/femnist is not in",
        "pncs data get femnist",
        "hf download flwrlabs/femnist --repo-type dataset",
        str(tmp_path / "flwrlabs" / "femnist"),
    ):
        assert wanted in str(raised.value)


def test_without_a_network_get_says_so_at_once(tmp_path: Path) -> None:
    start = time.monotonic()
    done = CliRunner().invoke(app, ["data", "get", "hf:me/mine", "--data-dir", str(tmp_path)])
    assert time.monotonic() - start < 10  # its own library would try for half a minute
    assert done.exit_code == 1
    said = done.output.replace("\n", " ")
    assert "cannot be reached" in said
    assert "hf download me/mine" in said
    assert not any(tmp_path.glob("me/*"))


@pytest.mark.parametrize("name", ["hf:", "hf:a/b/c/d", "hf:../x", "hf:a//b"])
def test_names_that_the_hub_has_not_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="a name of the Hugging Face hub, such as hf:ylecun"):
        find_dataset(name)


def test_what_get_fetches_is_what_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def load(*names: Any) -> Any:
        asked.append(names)
        return datasets.DatasetDict(train=femnist())

    monkeypatch.setattr(hub, "_reach", lambda dataset: None)
    monkeypatch.setattr(datasets, "load_dataset", load)
    command = ["data", "get", "hf:me/letters:small", "--data-dir", str(tmp_path)]
    assert CliRunner().invoke(app, command).exit_code == 0
    assert CliRunner().invoke(app, command).exit_code == 0
    assert asked == [("me/letters", "small")]
    done = CliRunner().invoke(
        app,
        [
            *("data", "check", "hf:me/letters:small", "--data-dir", str(tmp_path)),
            *("--columns", "", "", "writer_id"),
        ],
    )
    assert done.exit_code == 0
    assert "me/letters:small: 1x4x4" in done.output
    assert "training: 54 examples, 0 to" in done.output
    assert "clients: 3, with 18 to 18 training examples" in done.output


def test_it_is_decoded_once_and_the_fingerprint_is_of_files_and_columns(tmp_path: Path) -> None:
    folder = tmp_path / "first" / "data"
    folder.mkdir(parents=True)
    femnist().to_parquet(folder / "train.parquet")
    (folder.parent / ".git").mkdir()
    (folder.parent / ".git" / "HEAD").write_text("")
    load_dataset("femnist", str(folder.parent))
    assert len(list((tmp_path / "cache").glob("pncs-flower/hub-*"))) == 1
    load_dataset.cache_clear()
    data = load_dataset("femnist", str(folder.parent))
    assert isinstance(data.train.base, np.memmap)
    assert len(list((tmp_path / "cache").glob("pncs-flower/hub-*"))) == 1
    assert list(dataset_files("femnist", str(folder.parent))) == ["data/train.parquet"]
    first = dataset_fingerprint("femnist", str(folder.parent))
    moved = folder.parent.rename(tmp_path / "moved")
    assert dataset_fingerprint("femnist", str(moved)) == first
    other = Reading(label="hsf_id")
    assert dataset_fingerprint("femnist", str(moved), other) != first


def settings(folder: Path, **changes: Any) -> Config:
    keys = {key.replace("_", "-"): value for key, value in changes.items()}
    return Config.from_run_config(default_run_config() | {"data-dir": str(folder)} | keys)


def test_the_natural_partition_is_that_of_flower_datasets(tmp_path: Path) -> None:
    from flwr_datasets.partitioner import NaturalIdPartitioner

    rows = femnist(clients=4)
    datasets.DatasetDict(train=rows, test=rows).save_to_disk(tmp_path)
    config = settings(tmp_path, dataset="femnist", partition="natural")
    theirs = NaturalIdPartitioner("writer_id")
    theirs.dataset = rows.add_column("place", list(range(len(rows))))
    parts = load_inputs(config).divide(config, 4)
    for client, part in enumerate(parts):
        assert part.tolist() == theirs.load_partition(client)["place"][:]
    # Of more writers than clients some are drawn, by the seed.
    some = load_inputs(config).divide(config, 2)
    assert {tuple(part) for part in some} < {tuple(part) for part in parts}
    chosen = {
        tuple(part[0] for part in load_inputs(config).divide(seeded, 2))
        for seeded in (settings(tmp_path, partition="natural", seed=seed) for seed in range(8))
    }
    assert len(chosen) > 1
    with pytest.raises(ValueError, match="5 clients cannot be taken from the 4"):
        load_inputs(config).divide(config, 5)
    digits = settings(tmp_path, partition="natural")
    with pytest.raises(ValueError, match="names no clients: set client-column"):
        load_inputs(digits).divide(digits, 4)


def test_validation_examples_are_the_last_of_each_client(tmp_path: Path) -> None:
    shakespeare().to_parquet(tmp_path / "train.parquet")
    config = settings(
        tmp_path,
        dataset="shakespeare",
        model="char-lstm",
        evaluate_on="validation",
        test_examples=2,
    )
    inputs = load_inputs(config)
    assert len(inputs.train_labels) == 51
    assert len(inputs.test_labels) == 2  # of three
    assert inputs.train_tensors(np.arange(51))[0].shape == (51, 80)


@pytest.mark.parametrize(
    ("dataset", "model", "problem"),
    [
        (
            "shakespeare",
            "mlp",
            "'mlp' takes images or numbers, but the data set has text: set model to char",
        ),
        ("digits", "char-lstm", "'char-lstm' takes text, but the data set has images"),
    ],
)
def test_a_model_for_something_else_is_refused(
    tmp_path: Path, dataset: str, model: str, problem: str
) -> None:
    shakespeare().to_parquet(tmp_path / "train.parquet")
    with pytest.raises(ValueError, match=problem):
        load_inputs(settings(tmp_path, dataset=dataset, model=model))


@pytest.mark.minutes
@pytest.mark.parametrize(
    ("strategy", "precision"),
    [(rule, "float32") for rule in ("pncs", "sketched-mean", "uniform")]
    + [("uniform", "bfloat16")],
)
def test_rules_train_the_model_for_text(tmp_path: Path, strategy: str, precision: str) -> None:
    shakespeare(clients=4, each=150).to_parquet(tmp_path / "train.parquet")
    config = settings(
        tmp_path,
        **{"dataset": "shakespeare", "model": "char-lstm", "partition": "natural"},
        **{"strategy": strategy, "precision": precision, "lr": 0.5, "num-rounds": 2},
        **{"device": "cpu"},
    )
    rows: list[Any] = []
    grid = InProcessGrid(client_app, 3, config.to_run_config())
    train(grid, config, tmp_path / "run", rows.append)
    assert [len(row["delivered"]) for row in rows] == [2, 2]
    assert [row["rejected"] for row in rows] == [{}, {}]
    first = json.loads((tmp_path / "run" / "summary.json").read_text())["initial-loss"]
    assert rows[-1]["loss"] < first
    if strategy == "pncs" and precision == "float32":
        # The whole of an LSTM is a layer, by its name.
        layers = replace(config, rule='layers = "lstm", sketch = "layers"')
        train(grid, layers, tmp_path / "of-a-layer", rows.append)
        sent = 4 * (4 * 128 * 8 + 4 * 128 * 128 + 2 * 4 * 128)
        assert 3 * sent <= rows[2]["bytes_up"]["pre-round"] < 3.1 * sent


def test_a_sweep_has_the_natural_partition_as_a_panel(tmp_path: Path) -> None:
    own = {"dataset": "femnist", "data-dir": str(tmp_path)}
    sweep = Sweep(title="x", rules=("uniform",), shards=(2,), natural=True, settings=own)
    panels = {cell.panel: cell.settings["partition"] for cell in sweep.cells()}
    assert panels == {
        "shards 2, layers 1, selected 2": "shards",
        "natural, layers 1, selected 2": "natural",
    }
