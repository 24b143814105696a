"""Table 1 of the paper: which feature of two gradients tells a good pair of clients."""

import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pncs_flower.files import held

from ..config import Config, Scalar, default_run_config, format_toml
from ..sweep.sweep import PLACES, refuse_axes
from ..task import inputs_fingerprint
from .features import FEATURES
from .model import Labels, PairModel, fit_pair_model, label_pairs, relative_losses
from .observe import Observations, observe_pairs, read_observations, write_observations

__all__ = ["ALL", "RANDOM", "Row", "Study", "analyse", "run_study"]

ALL, RANDOM = "all features", "a random pair"
"""Rows beside those of the features: the model of all, and the mean over all pairs."""

_LABELS: tuple[Labels, ...] = ("min-max", "softmax")


@dataclass(frozen=True)
class Study:
    """What is observed: section V-B's setting, or a quick version of it."""

    settings: Mapping[str, Scalar]
    shards: tuple[int, ...] = (1, 2, 5)
    seeds: int = 10
    clients: int = 10

    def __post_init__(self) -> None:
        refuse_axes(self.settings)
        if self.seeds < 2:
            raise ValueError(
                f"seeds = {self.seeds} must be at least 2: a model is fitted on some and judged on "
                "others"
            )

    @classmethod
    def of_the_paper(cls, settings: Mapping[str, Scalar], quick: bool = False) -> "Study":
        """Return the paper's study, or a quick version, with some settings changed."""
        common: dict[str, Scalar] = {
            "num-rounds": 15,
            "lr": 0.1,
            "evaluate-on": "validation",
            "aggregation": "uniform",
            "device": "cpu",
            "rule.sketch": "layers",
        }
        if quick:
            own: dict[str, Scalar] = {
                "dataset": "digits",
                "model": "linear",
                "num-rounds": 6,
                "lr": 0.5,
            }
        else:
            own = {"dataset": "cifar10", "model": "vgg16"}
        return cls({**common, **own, **settings}, seeds=3 if quick else 10)

    def configs(self) -> dict[tuple[int, int], Config]:
        """Return the settings of each run, by shards and seed."""
        return {
            (shards, seed): Config.from_run_config(
                {
                    **default_run_config(),
                    **self.settings,
                    "shards-per-client": shards,
                    "seed": seed,
                }
            )
            for seed in range(self.seeds)
            for shards in self.shards
        }


@dataclass(frozen=True)
class Row:
    """A row of the table."""

    name: str
    ranks: Mapping[str, int]
    weight: float
    losses: NDArray[np.float64]


def run_study(
    study: Study, folder: Path, workers: int, on_run: Callable[[int, int], None]
) -> dict[tuple[int, int], Observations]:
    """Make the observations that are not in the folder yet, and return all of them."""
    folder.mkdir(parents=True, exist_ok=True)
    with held(folder):
        files = {
            key: folder / _file_name(config, study, key) for key, config in study.configs().items()
        }
        todo = {key: config for key, config in study.configs().items() if not files[key].exists()}
        done = len(files) - len(todo)
        if workers > 1 and len(todo) > 1:
            os.environ.setdefault(
                "OMP_NUM_THREADS", "1"
            )  # a process for each, not all cores for each
            with _pool(workers) as pool:
                running = {
                    pool.submit(observe_pairs, config, study.clients): key
                    for key, config in todo.items()
                }
                for future in as_completed(running):
                    write_observations(files[running[future]], future.result())
                    done += 1
                    on_run(done, len(files))
        else:
            for key, config in todo.items():
                write_observations(files[key], observe_pairs(config, study.clients))
                done += 1
                on_run(done, len(files))
        return {key: read_observations(path) for key, path in files.items()}


@contextmanager
def _pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """Offer processes that, if this one is stopped, are stopped at once, and begin nothing more."""
    pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"))
    try:
        yield pool
    except BaseException:
        for process in multiprocessing.active_children():
            process.kill()
        pool.shutdown(cancel_futures=True)
        raise
    pool.shutdown()


def analyse(study: Study, observed: Mapping[tuple[int, int], Observations]) -> list[Row]:
    """Return the table, the features by their mean relative loss, then `ALL` and `RANDOM`."""
    seeds = list(range(study.seeds))
    ranks = {labels: _ranks(_fit(study, observed, seeds, FEATURES, labels)) for labels in _LABELS}
    loss = _stack(study, observed, seeds, lambda each: each.loss)
    rows = [
        Row(
            name,
            {labels: ranks[labels][name] for labels in _LABELS},
            _fit(study, observed, seeds, (name,), "min-max").weights[0],
            _judged(study, observed, (name,)),
        )
        for name in FEATURES
    ]
    rows.sort(key=lambda row: float(row.losses.mean()))
    least, largest = loss.min(-1), loss.max(-1)
    spread = np.where(largest > least, largest - least, 1)
    return [
        *rows,
        Row(ALL, {}, float("nan"), _judged(study, observed, FEATURES)),
        Row(RANDOM, {}, float("nan"), (loss.mean(-1) - least) / spread),
    ]


def _judged(
    study: Study, observed: Mapping[tuple[int, int], Observations], names: Sequence[str]
) -> NDArray[np.float64]:
    """Return the relative losses of what a model chooses that was fitted on the other seeds."""
    result = np.zeros((len(study.shards), study.seeds, int(study.settings["num-rounds"])))
    for fold in (0, 1):
        own = list(range(fold, study.seeds, 2))
        others = list(range(1 - fold, study.seeds, 2))
        model = _fit(study, observed, others, names, "min-max")
        loss = _stack(study, observed, own, lambda each: each.loss)
        scores = _stack(study, observed, own, partial(_score, model))
        result[:, own] = relative_losses(loss, scores)
    return result


def _score(model: PairModel, observations: Observations) -> NDArray[np.float64]:
    return model.score(observations.features)


def _feature(name: str, observations: Observations) -> NDArray[np.float64]:
    return observations.features[name]


def _fit(
    study: Study,
    observed: Mapping[tuple[int, int], Observations],
    seeds: Sequence[int],
    names: Sequence[str],
    labels: Labels,
) -> PairModel:
    features = {name: _stack(study, observed, seeds, partial(_feature, name)) for name in names}
    accuracy = _stack(study, observed, seeds, lambda each: each.accuracy)
    return fit_pair_model(features, label_pairs(accuracy, labels), names)


def _stack(
    study: Study,
    observed: Mapping[tuple[int, int], Observations],
    seeds: Sequence[int],
    get: Callable[[Observations], NDArray[np.float64]],
) -> NDArray[np.float64]:
    """Return an array of shape (shards, seeds, rounds, pairs)."""
    return np.array([[get(observed[shards, seed]) for seed in seeds] for shards in study.shards])


def _ranks(model: PairModel) -> dict[str, int]:
    order = sorted(zip(model.features, model.weights, strict=True), key=lambda pair: -abs(pair[1]))
    return {name: place for place, (name, _) in enumerate(order, start=1)}


def _file_name(config: Config, study: Study, key: tuple[int, int]) -> str:
    values = {k: v for k, v in config.to_run_config().items() if k not in PLACES}
    if not config.rule:
        del values["rule"]  # the names of before there was such a setting
    text = f"{study.clients}\n{format_toml(values)}{inputs_fingerprint(config)}"
    return f"shards-{key[0]}-seed-{key[1]}-{blake2b(text.encode(), digest_size=6).hexdigest()}.npz"
