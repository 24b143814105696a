"""What frozen layers make of a data set: computed once, kept on disk, shared by all processes."""

import json
import os
import zlib
from collections.abc import Callable
from functools import cache, cached_property, partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..config import Config
from ..data.datasets import dataset_fingerprint, load_dataset
from ..how_far import tell
from ..whole_folder import have_folder
from .pretrained import cuts, frozen_part, normalize
from .weights import read_weights, weights_fingerprint

_PARTS = ("train", "test")
_CHUNK = 250


class FrozenData:
    """A folder of the cache, opened and found whole."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
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
        """Mean and deviation of each feature over the training examples; 1 for a constant's."""
        features = self.features[0]
        total, squares = np.zeros((2, *features.shape[1:]))
        for start in range(0, len(features), _CHUNK):
            chunk = features[start : start + _CHUNK].astype(np.float64)
            total += chunk.sum(axis=0)
            squares += (chunk * chunk).sum(axis=0)
        mean = total / len(features)
        deviation = np.sqrt(np.maximum(squares / len(features) - mean * mean, 0))
        # What is left of a constant by rounding is no deviation.
        deviation[deviation <= 1e-6 * np.abs(mean)] = 1
        return mean.astype(np.float32), deviation.astype(np.float32)


def load_frozen(config: Config) -> FrozenData:
    """Return the output of the frozen layers for every example; computed if it is not on disk."""
    return _stretches(config)[-1]


def frozen_folders(config: Config) -> list[Path]:
    """Return the folders of the cache that `load_frozen` reads."""
    return [each.folder for each in _stretches(config)]


def _stretches(config: Config) -> list[FrozenData]:
    """Return the output of each stretch of frozen layers, which is the input of the next."""
    default = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "pncs-flower"
    folder = Path(config.cache_dir or default).expanduser()
    found: list[FrozenData] = []
    for layers in cuts(config.model, config.trainable_layer_names):
        given = found[-1] if found else None
        found.append(_cached(folder, _key(config, layers), partial(_write, config, layers, given)))
    return found


def _key(config: Config, layers: tuple[str, ...]) -> dict[str, Any]:
    """Return all that the output of the layers before some others depends on."""
    return {
        "format": 1,
        "model": config.model,
        "data": dataset_fingerprint(*config.data),
        "weights": weights_fingerprint(config.weights, config.model),
        "normalization": config.normalization,
        "cut": layers[0],
        **({"resize": config.resize} if config.resize else {}),
    }


def _write(
    config: Config, layers: tuple[str, ...], given: FrozenData | None, folder: Path
) -> dict[str, Any]:
    """Write what frozen layers make of the images, or of what those before them have made."""
    if given is None:
        data = load_dataset(*config.data)
        if data.max_value is None:
            raise ValueError(f"model = {config.model!r} takes images, not {data.kind}")
        inputs: Any = (data.train, data.test)
        labels: Any = (data.train_labels, data.test_labels)
        about: dict[str, Any] = {"title": data.title, "num_classes": data.num_classes, "drawn": []}
        pixels = data.max_value
    else:
        inputs, labels, about = given.features, given.labels, given.about

    def prepare(chunk: NDArray[Any]) -> Tensor:
        if given is None:
            return normalize(chunk, pixels, config.normalization, config.resize)
        return torch.from_numpy(chunk.copy())

    state = read_weights(config.weights, config.model)
    network, drawn = frozen_part(config.model, state, layers, prepare(inputs[0][:2]))
    for part, of_part, own_labels in zip(_PARTS, inputs, labels, strict=True):
        _run(network, of_part, prepare, folder / f"{part}.npy")
        np.save(folder / f"{part}-labels.npy", own_labels)
    return {**about, "drawn": [*about["drawn"], *drawn]}


def _run(
    network: nn.Module, inputs: NDArray[Any], prepare: Callable[[NDArray[Any]], Tensor], path: Path
) -> None:
    """Write the output for every input, in pieces that fit in memory."""
    with torch.inference_mode():
        shape = (len(inputs), *network(prepare(inputs[:1])).shape[1:])
        outputs = np.lib.format.open_memmap(path, "w+", np.float32, shape)
        for start in range(0, len(inputs), _CHUNK):
            chunk = slice(start, start + _CHUNK)
            outputs[chunk] = network(prepare(inputs[chunk])).numpy()
            tell(f"frozen layers, {path.stem}", min(chunk.stop, len(inputs)), len(inputs))
    outputs.flush()


def _cached(
    folder: Path, key: dict[str, Any], make: Callable[[Path], dict[str, Any]]
) -> FrozenData:
    """Return a folder of the cache, which is there whole or not at all."""
    name = blake2b(json.dumps(key, sort_keys=True).encode(), digest_size=12).hexdigest()
    final = folder / f"{key['model'].replace('/', '-')}-{name}"

    def write(new: Path) -> None:
        about = make(new)
        checksums = {path.name: _checksum(path) for path in sorted(new.glob("*.npy"))}
        text = json.dumps({**about, "key": key, "checksums": checksums}, indent=2)
        (new / "about.json").write_text(text, encoding="utf-8")

    have_folder(final, final.is_dir, write)
    return _opened(final)


_opened = cache(FrozenData)


def _checksum(path: Path) -> int:
    return zlib.crc32(np.memmap(path, mode="r").data)
