"""What frozen layers make of a data set: computed once, kept on disk, shared by all processes."""

import json
import os
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from pncs_flower.files import held

from ..config import Config
from ..data.datasets import dataset_fingerprint, load_dataset
from .cut_network import FROZEN_PREFIX, cut_before, frozen_part
from .state_dict import read_state, weights_file
from .vgg16 import (
    CONVOLUTIONS,
    check_trainable,
    frozen_layers,
    normalize,
    read_weights,
)

__all__ = ["FrozenData", "load_frozen", "weights_fingerprint"]

_PARTS = ("train", "test")
_CHUNK = 250
_FORMAT = 1
_PARTIAL = ".partial-"


class FrozenData:
    """A folder of the cache, opened and found whole."""

    def __init__(self, folder: Path) -> None:
        try:
            self.about: dict[str, Any] = json.loads((folder / "about.json").read_text("utf-8"))
            for name, checksum in self.about["checksums"].items():
                if _checksum(folder / name) != checksum:
                    raise ValueError(f"{name} has changed")
            self.features, self.labels = (
                [np.load(folder / f"{part}{kind}.npy", mmap_mode="r") for part in _PARTS]
                for kind in ("", "-labels")
            )
        except (OSError, ValueError, KeyError) as error:
            raise ValueError(
                f"the cached features in {folder} are damaged ({error}): delete that folder, and "
                "they are computed again"
            ) from None

    @cached_property
    def moments(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Mean and standard deviation of each feature over the training examples.

        The deviation of a feature that is always the same is given as 1.
        """
        features = self.features[0]
        total = np.zeros(features.shape[1:])
        squares = np.zeros(features.shape[1:])
        for start in range(0, len(features), _CHUNK):
            chunk = features[start : start + _CHUNK].astype(np.float64)
            total += chunk.sum(axis=0)
            squares += (chunk * chunk).sum(axis=0)
        mean = total / len(features)
        deviation = np.sqrt(np.maximum(squares / len(features) - mean * mean, 0))
        # What is left of a constant by rounding is no deviation.
        deviation[deviation <= 1e-6 * np.abs(mean)] = 1
        deviation[deviation == 0] = 1
        return mean.astype(np.float32), deviation.astype(np.float32)


def load_frozen(config: Config) -> FrozenData:
    """Return the output of the frozen layers for every example; computed if it is not on disk."""
    default = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "pncs-flower"
    source = _Source(
        config.model,
        config.dataset,
        config.data_dir,
        config.weights,
        config.normalization,
        config.resize,
        Path(config.cache_dir or default).expanduser(),
    )
    layers = config.trainable_layer_names
    if config.model == "vgg16":
        return _load_vgg16(source, check_trainable(layers))
    cut_before(config.model.removeprefix(FROZEN_PREFIX), layers)
    return _load_network(source, layers)


@dataclass(frozen=True)
class _Source:
    """What the features of a network depend on, and where they are kept."""

    model: str
    dataset: str
    data_dir: str
    weights: str
    normalization: str
    resize: int
    folder: Path

    def key(self, cut: str) -> dict[str, Any]:
        """Return all that the output of the layers before a cut depends on."""
        resized = {"resize": self.resize} if self.resize else {}
        return {
            "format": _FORMAT,
            "model": self.model,
            "data": dataset_fingerprint(self.dataset, self.data_dir),
            "weights": weights_fingerprint(self.weights, self.model),
            "normalization": self.normalization,
            "cut": cut,
            **resized,
        }

    def write(self, network: Callable[[torch.Tensor], nn.Module], path: Path) -> dict[str, Any]:
        """Run the data set's images through a network, which is made once they are known."""
        data = load_dataset(self.dataset, self.data_dir)

        def prepare(chunk: NDArray[Any]) -> torch.Tensor:
            return normalize(chunk, data.max_value, self.normalization, self.resize)

        made = network(prepare(data.train_images[:2]))
        images = (data.train_images, data.test_images)
        for part, pixels in zip(_PARTS, images, strict=True):
            _run(made, pixels, prepare, path / f"{part}.npy")
        for part, labels in zip(_PARTS, (data.train_labels, data.test_labels), strict=True):
            np.save(path / f"{part}-labels.npy", labels)
        return {"title": data.title, "num_classes": data.num_classes, "drawn": []}


@cache
def weights_fingerprint(path: str, model: str) -> str:
    """Hash a file of weights, to 32 hexadecimal digits."""
    file = weights_file(path, model.removeprefix(FROZEN_PREFIX))
    return blake2b(file.read_bytes(), digest_size=16).hexdigest()


@cache
def _load_network(source: _Source, layers: tuple[str, ...]) -> FrozenData:
    name = source.model.removeprefix(FROZEN_PREFIX)

    def make(path: Path) -> dict[str, Any]:
        state = read_state(source.weights, name)
        return source.write(lambda sample: frozen_part(name, state, layers, sample), path)

    return _cached(source.folder, source.key(layers[0]), make)


@cache
def _load_vgg16(source: _Source, cut: str) -> FrozenData:
    def convolve(path: Path) -> dict[str, Any]:
        frozen = frozen_layers(read_weights(source.weights), CONVOLUTIONS, from_convolutions=False)
        return {**source.write(lambda sample: frozen.network, path), "drawn": list(frozen.drawn)}

    convolved = _cached(source.folder, source.key(CONVOLUTIONS), convolve)
    if cut == CONVOLUTIONS:
        return convolved

    def classify(path: Path) -> dict[str, Any]:
        single = convolved.features[0].shape[2:] == (1, 1)
        frozen = frozen_layers(
            read_weights(source.weights), cut, from_convolutions=True, single_pixel=single
        )
        for part, features, labels in zip(
            _PARTS, convolved.features, convolved.labels, strict=True
        ):
            _run(
                frozen.network,
                features,
                lambda chunk: torch.from_numpy(chunk.copy()),
                path / f"{part}.npy",
            )
            np.save(path / f"{part}-labels.npy", labels)
        return {**convolved.about, "drawn": [*convolved.about["drawn"], *frozen.drawn]}

    return _cached(source.folder, source.key(cut), classify)


def _run(
    network: nn.Module,
    inputs: NDArray[Any],
    prepare: Callable[[NDArray[Any]], torch.Tensor],
    path: Path,
) -> None:
    """Write the output for every input, in pieces that fit in memory."""
    outputs: np.memmap[Any, np.dtype[np.float32]] | None = None
    with torch.inference_mode():
        for start in range(0, len(inputs), _CHUNK):
            chunk = network(prepare(inputs[start : start + _CHUNK])).numpy()
            if outputs is None:
                shape = (len(inputs), *chunk.shape[1:])
                outputs = np.lib.format.open_memmap(path, "w+", np.float32, shape)
            outputs[start : start + len(chunk)] = chunk
    if outputs is not None:
        outputs.flush()


def _cached(
    folder: Path, key: dict[str, Any], make: Callable[[Path], dict[str, Any]]
) -> FrozenData:
    """Return a folder of the cache, which is there whole or not at all."""
    name = blake2b(json.dumps(key, sort_keys=True).encode(), digest_size=12).hexdigest()
    final = folder / f"{key['model'].replace('/', '-')}-{name}"
    if not final.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        with _unfinished(folder) as partial:
            about = make(partial)
            checksums = {path.name: _checksum(path) for path in sorted(partial.glob("*.npy"))}
            text = json.dumps({**about, "key": key, "checksums": checksums}, indent=2)
            (partial / "about.json").write_text(text, encoding="utf-8")
            try:
                partial.rename(final)
            except OSError:
                if not final.is_dir():  # else another process was first
                    raise
    return FrozenData(final)


@contextmanager
def _unfinished(folder: Path) -> Iterator[Path]:
    """Make a folder that lasts only if the block renames it, and remove what killed ones left."""
    for left in folder.glob(f"{_PARTIAL}*"):
        # Unless it is finished meanwhile, or its process still lives.
        with suppress(OSError, ValueError), held(left):
            shutil.rmtree(left, ignore_errors=True)
    new = Path(tempfile.mkdtemp(prefix=".new-", dir=folder))
    partial = new.with_name(f"{_PARTIAL}{new.name.removeprefix('.new-')}")
    with held(new):  # before it has the name by which others find it
        new.rename(partial)
        try:
            yield partial
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def _checksum(path: Path) -> int:
    value = 0
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            value = zlib.crc32(block, value)
    return value
