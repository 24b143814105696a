"""What the model of a run sees of the data: the examples, or what frozen layers make of them."""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pncs_flower.randomness import generator

from .config import Agreeing, Config
from .data.datasets import dataset_fingerprint, find_dataset, load_dataset
from .data.examples import as_float, every_nth_of_each_class, last_tenth_of_each, unwritable
from .data.partitions import partition_examples
from .models.frozen import load_frozen
from .models.pretrained import build_last_layers
from .models.small import build_model, check_kind
from .models.weights import read_weights, weights_fingerprint
from .scores import ACCURACY, R2

_VALIDATION_STEP = 10

# Of standardized validation examples: those of the first edition were standardized anew whenever
# a process used them, so what was computed with them is not to be taken for what is computed now.
_EDITION = "standardized once"


@dataclass(frozen=True)
class Inputs:
    """Examples as they lie in memory or on disk; all runs of a process share them."""

    # So the arrays cannot be written to, and what `train_tensors` and `test_tensors` return is
    # the caller's own.

    train: NDArray[Any]  # (N, ...): uint8 images or characters, or float32 features
    test: NDArray[Any]  # what the model is judged by
    train_labels: NDArray[Any]  # classes, int64, or numbers, float32
    test_labels: NDArray[Any]
    num_classes: int  # 0 if labels are numbers
    title: str
    max_value: int | None = None  # of a white pixel; None for what is no image
    notes: tuple[str, ...] = ()  # what a reader of the results must know of the features
    # Mean and deviation by which features are standardized.
    moments: tuple[NDArray[np.float32], NDArray[np.float32]] | None = None
    places: NDArray[np.int64] | None = None  # in `train`, if not all of it is used
    clients: NDArray[np.int64] | None = None  # whose each training example is, if that is known

    def __post_init__(self) -> None:
        for name in ("train", "train_labels", "test", "test_labels"):
            object.__setattr__(self, name, unwritable(getattr(self, name)))

    def with_validation(self) -> "Inputs":
        """Return the same with a tenth of the training examples in place of the test.

        Every tenth of each class, or the last tenth of each client where the data names clients.
        """
        held_back = (
            every_nth_of_each_class(self.train_labels, _VALIDATION_STEP)
            if self.clients is None
            else last_tenth_of_each(self.clients)
        )
        if not held_back.any():
            raise ValueError(
                f"evaluate-on = 'validation', but no class or client of the {len(held_back)} "
                f"training examples has {_VALIDATION_STEP}: take the test examples"
            )
        return replace(
            self,
            clients=None if self.clients is None else self.clients[~held_back],
            train_labels=np.array(self.train_labels[~held_back]),
            test=self.train[held_back],
            test_labels=np.array(self.train_labels[held_back]),
            places=np.flatnonzero(~held_back),
        )

    @property
    def score(self) -> str:
        """The key of what a model is judged by."""
        return ACCURACY if self.num_classes else R2

    @property
    def num_outputs(self) -> int:
        """How many numbers a model makes of an example: one for each class, or the one wanted."""
        return self.num_classes or 1

    def judged_by(self, most: int) -> "Inputs":
        """Return the same with at most so many test examples, drawn the same way for all runs."""
        if not 0 < most < len(self.test_labels):
            return self
        drawn = np.sort(generator(0, "test examples").permutation(len(self.test_labels))[:most])
        return replace(self, test=self.test[drawn], test_labels=self.test_labels[drawn])

    def divide(self, config: Config, num_clients: int) -> list[NDArray[np.int64]]:
        """Return the training examples of each client, as the settings divide them."""
        return partition_examples(
            self.train_labels,
            num_clients,
            config.partition,
            shards_per_client=config.shards_per_client,
            dirichlet_alpha=config.dirichlet_alpha,
            owners=self.clients,
            seed=config.seed,
        )

    def train_tensors(self, examples: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Return some training examples with their labels."""
        places = examples if self.places is None else self.places[examples]
        labels = torch.from_numpy(self.train_labels[examples])
        return self._tensor(self.train.take(places, axis=0)), labels

    def test_tensors(self) -> tuple[Tensor, Tensor]:
        """Return all test examples with their labels."""
        return self._tensor(np.array(self.test)), torch.from_numpy(np.array(self.test_labels))

    def _tensor(self, values: NDArray[Any]) -> Tensor:
        """Return examples as the model sees them; ``values`` must be a copy, and is used up."""
        if self.max_value is not None:
            return torch.from_numpy(as_float(values, self.max_value))
        if self.moments is not None:
            mean, deviation = self.moments
            values -= mean
            values /= deviation
        return torch.from_numpy(values)


def load_inputs(config: Config) -> Inputs:
    """Return the examples of a run, which are kept for the next run that has the same."""
    return _load(config.of_inputs())


def inputs_fingerprint(config: Config) -> str:
    """Hash the files that a run's examples come from, by their contents."""
    found = dataset_fingerprint(*config.data)
    if config.has_frozen_layers:
        found += weights_fingerprint(config.weights, config.model)
        if config.evaluate_on == "validation" and config.features == "standardized":
            found += _EDITION
    return found


@lru_cache(maxsize=2)
def _load(agreeing: Agreeing) -> Inputs:
    config = agreeing.config
    inputs = _load_all(config)
    if config.evaluate_on == "validation":
        inputs = inputs.with_validation()
    return inputs.judged_by(config.test_examples)


def _load_all(config: Config) -> Inputs:
    if not config.has_frozen_layers:
        data = load_dataset(*config.data)
        check_kind(config.model, data.kind)
        examples = data.train, data.test, data.train_labels, data.test_labels
        about = data.num_classes, data.title
        return Inputs(*examples, *about, max_value=data.max_value, clients=data.clients)
    frozen = load_frozen(config)
    notes = []
    if frozen.about["drawn"]:
        drawn = ", ".join(frozen.about["drawn"])
        notes.append(f"frozen, but not in the file of weights and so drawn at random: {drawn}")
    moments = None
    if config.features == "standardized" and _starts_at_random(config):
        moments = frozen.moments
        notes.append(
            f"the inputs of {config.trainable_layer_names[0]} are standardized by mean and "
            "deviation over all training examples"
        )
    features = frozen.features[0], frozen.features[1]
    labels = frozen.labels[0], frozen.labels[1]
    on_hub = find_dataset(*config.data[::2]).on_hub
    return Inputs(
        *features,
        *labels,
        frozen.about["num_classes"],
        frozen.about["title"],
        notes=tuple(notes),
        moments=moments,
        clients=load_dataset(*config.data).clients if on_hub else None,
    )


def _starts_at_random(config: Config) -> bool:
    """Return whether the first trained layer has no weights that expect its inputs as they are."""
    layers = config.trainable_layer_names
    first = f"{layers[0]}.weight"
    return len(layers) == 1 or first not in read_weights(config.weights, config.model)


def initial_model(config: Config, inputs: Inputs) -> nn.Module:
    """Return the model that training starts from; only what is trained is in it."""
    if not config.has_frozen_layers:
        shape = inputs.train.shape[1:]
        return build_model(config.model, shape, inputs.num_outputs, config.seed)
    return build_last_layers(
        config.model,
        config.trainable_layer_names,
        inputs.num_classes,
        read_weights(config.weights, config.model),
        config.seed,
    )


def empty_model(config: Config, inputs: Inputs) -> nn.Module:
    """Return a model whose weights will be overwritten."""
    if not config.has_frozen_layers:
        return initial_model(config, inputs)
    return build_last_layers(config.model, config.trainable_layer_names, inputs.num_classes)
