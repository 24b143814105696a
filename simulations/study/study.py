"""Table 1 of the paper: which feature of two gradients tells a good pair of clients."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pncs_flower.files import held

from ..config import Config, Scalar, default_run_config
from ..folders import OBSERVATIONS
from ..sweep.cell import digest
from ..sweep.failure import Failure
from ..sweep.pool import Moved, pool
from ..sweep.results import make_folder, refuse_other_results
from ..sweep.sweep import REFUSED, refuse_axes
from ..task import inputs_fingerprint
from .features import FEATURES
from .model import Labels, PairModel, fit_pair_model, label_pairs, relative, relative_losses
from .observe import OBSERVED, Observations, observe_pairs, read_observations, write_observations

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
        refuse_axes(self.settings, dict.fromkeys(REFUSED, "is the study's own: leave it out"))
        if self.seeds < 2:
            raise ValueError(
                f"seeds = {self.seeds} must be at least 2: a model is fitted on some and judged on "
                "others"
            )

    @classmethod
    def of_the_paper(cls, settings: Mapping[str, Scalar], quick: bool = False) -> "Study":
        """Return the paper's study, or a quick version, with some settings changed."""
        own: dict[str, Scalar] = {"dataset": "cifar10", "model": "vgg16"}
        own |= {"num-rounds": 15, "lr": 0.1, "evaluate-on": "validation"}
        own |= {"aggregation": "uniform", "device": "cpu", "rule.sketch": "layers"}
        if quick:
            own |= {"dataset": "digits", "model": "linear", "num-rounds": 6, "lr": 0.5}
        return cls({**own, **settings}, seeds=3 if quick else 10)

    def configs(self) -> dict[tuple[int, int], Config]:
        """Return the settings of each run, by shards and seed."""
        common = {**default_run_config(), **self.settings}
        return {
            (n, seed): Config.from_run_config({**common, "shards-per-client": n, "seed": seed})
            for seed in range(self.seeds)
            for n in self.shards
        }


@dataclass(frozen=True)
class Row:
    """A row of the table; ``losses`` has the shape (shards, seeds, rounds)."""

    name: str
    ranks: Mapping[str, int]
    weight: float
    losses: NDArray[np.float64]


def check_study(study: Study, folder: Path) -> None:
    """Refuse what cannot be run, or written to a folder, before anything is."""
    study.configs()
    refuse_other_results(folder, OBSERVATIONS)
    make_folder(folder)


def run_study(
    study: Study, folder: Path, workers: int | None, on_run: Callable[[int, int], None]
) -> Observations:
    """Make the observations that are not in the folder yet, and return those of all runs."""
    # Each has the shape (shards, seeds, rounds, pairs).
    folder.mkdir(parents=True, exist_ok=True)
    with held(folder):
        files = {key: folder / _file_name(study, c) for key, c in study.configs().items()}
        todo = {files[key]: c for key, c in study.configs().items() if not files[key].exists()}
        done = len(files) - len(todo)
        observe = partial(_observe, num_clients=study.clients)
        with pool(0 if workers == 1 or len(todo) < 2 else workers) as run_jobs:
            for path, seen in run_jobs(observe, todo, todo.values()):
                if isinstance(seen, Failure):
                    raise seen.error
                write_observations(path, seen)
                done += 1
                on_run(done, len(files))
        there = {key: read_observations(path) for key, path in files.items()}
    seeds = range(study.seeds)
    return {
        name: np.array([[there[n, seed][name] for seed in seeds] for n in study.shards])
        for name in OBSERVED
    }


def _observe(config: Config, moved: Moved, num_clients: int) -> Observations:
    return observe_pairs(moved(config), num_clients)


def analyse(seen: Observations) -> list[Row]:
    """Return the table, the features by their mean relative loss, then `ALL` and `RANDOM`."""
    ranks = {labels: _ranks(_fit(seen, FEATURES, labels)) for labels in _LABELS}
    rows = []
    for name in FEATURES:
        weight = float(_fit(seen, (name,), "min-max").weights[0])
        own: dict[str, int] = {labels: ranks[labels][name] for labels in _LABELS}
        rows.append(Row(name, own, weight, _judged(seen, (name,))))
    rows.sort(key=lambda row: float(row.losses.mean()))
    of_random = relative(seen["loss"], seen["loss"].mean(-1))
    return [
        *rows,
        Row(ALL, {}, float("nan"), _judged(seen, FEATURES)),
        Row(RANDOM, {}, float("nan"), of_random),
    ]


def _judged(seen: Observations, names: Sequence[str]) -> NDArray[np.float64]:
    """Return the relative losses of what a model chooses that was fitted on the other seeds."""
    result = np.zeros(seen["loss"].shape[:-1])
    for fold in (0, 1):
        own = {name: values[:, fold::2] for name, values in seen.items()}
        others = {name: values[:, 1 - fold :: 2] for name, values in seen.items()}
        scores = _fit(others, names, "min-max").score(own)
        result[:, fold::2] = relative_losses(own["loss"], scores)
    return result


def _fit(seen: Observations, names: Sequence[str], labels: Labels) -> PairModel:
    return fit_pair_model(seen, label_pairs(seen["accuracy"], labels), names)


def _ranks(model: PairModel) -> dict[str, int]:
    order = sorted(zip(model.features, model.weights, strict=True), key=lambda pair: -abs(pair[1]))
    return {name: place for place, (name, _) in enumerate(order, start=1)}


def _file_name(study: Study, config: Config) -> str:
    own = digest(study.clients, config.to_run_config(), inputs_fingerprint(config))
    return f"shards-{config.shards_per_client}-seed-{config.seed}-{own}.npz"
