"""Partitions: as Flower Datasets has them, pure shards, nothing twice."""

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pncs_flower.randomness import derive_seed
from pncs_flower.simulations.data.partitions import partition_examples

# 10 classes of unequal size, 20 to 29 examples, in no order.
LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(10), np.arange(20, 30)))

SCHEMES = ["shards", "dirichlet", "iid"]


def test_partitions_are_those_of_flower_datasets() -> None:
    from datasets import Dataset
    from flwr_datasets.partitioner import DirichletPartitioner, Partitioner, ShardPartitioner

    def theirs(partitioner: Partitioner, chosen: np.ndarray) -> list[list[int]]:
        partitioner.dataset = Dataset.from_dict({"label": LABELS[chosen], "example": chosen})
        return [partitioner.load_partition(client)["example"][:] for client in range(10)]

    first = np.concatenate([np.flatnonzero(label == LABELS)[:20] for label in range(10)])
    # Of the last, six draws leave a client without an example.
    for seed, alpha in ((0, 0.5), (2, 5.0), (1, 0.02)):
        own = {"partition_by": "label", "seed": derive_seed(seed, "partition")}
        parts = partition_examples(LABELS, 10, seed=seed)
        others = partition_examples(LABELS, 10, "dirichlet", dirichlet_alpha=alpha, seed=seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # one for each draw anew
            shards = ShardPartitioner(10, num_shards_per_partition=2, shard_size=10, **own)
            assert [part.tolist() for part in parts] == theirs(shards, first)
            dirichlet = DirichletPartitioner(10, alpha=alpha, min_partition_size=1, **own)
            every = np.arange(len(LABELS))
            assert [part.tolist() for part in others] == theirs(dirichlet, every)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_no_example_is_held_twice(scheme: str) -> None:
    held = np.concatenate(partition_examples(LABELS, 5, scheme))
    assert len(held) == len(set(held.tolist()))


@pytest.mark.parametrize("scheme", ["dirichlet", "iid"])
def test_every_example_is_held(scheme: str) -> None:
    held = np.concatenate(partition_examples(LABELS, 5, scheme))
    assert sorted(held.tolist()) == list(range(len(LABELS)))


@settings(max_examples=20, deadline=None)
@given(st.sampled_from([(10, 1), (10, 2), (5, 2), (5, 4), (2, 5), (20, 3)]), st.integers(0, 99))
def test_a_client_holds_whole_shards_of_one_label_each(shape: tuple[int, int], seed: int) -> None:
    clients, shards = shape
    size = 20 // (clients * shards // 10)
    for part in partition_examples(LABELS, clients, shards_per_client=shards, seed=seed):
        counts = np.bincount(LABELS[part], minlength=10)
        assert counts.sum() == shards * size
        assert not (counts % size).any()


def test_every_class_gives_as_many_examples() -> None:
    held = np.concatenate(partition_examples(LABELS, 10, shards_per_client=2))
    assert np.bincount(LABELS[held]).tolist() == [20] * 10


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_seed_decides(scheme: str) -> None:
    def parts(seed: int) -> list[list[int]]:
        return [part.tolist() for part in partition_examples(LABELS, 5, scheme, seed=seed)]

    assert parts(1) == parts(1)
    assert parts(1) != parts(2)


def test_shards_that_do_not_divide_name_what_would() -> None:
    with pytest.raises(
        ValueError,
        match=r"7 clients x 2 shards-per-client = 14 shards cannot .* 10 classes: have 5 "
        r"clients or a multiple of it \(--clients\), or shards-per-client = 10 or a multiple of it",
    ):
        partition_examples(LABELS, 7, shards_per_client=2)


def test_draws_that_leave_clients_without_examples_are_given_up() -> None:
    with pytest.raises(ValueError, match=r"among 200 clients .* than 0.001"):
        partition_examples(LABELS, 200, "dirichlet", dirichlet_alpha=0.001)


def test_more_shards_than_examples_are_refused() -> None:
    with pytest.raises(ValueError, match="at most 200 shards in all"):
        partition_examples(LABELS, 105, shards_per_client=2)


def test_smaller_alpha_is_less_even() -> None:
    def largest_share(alpha: float) -> float:
        parts = partition_examples(LABELS, 5, "dirichlet", dirichlet_alpha=alpha)
        return float(np.mean([np.bincount(LABELS[p]).max() / len(p) for p in parts]))

    # 100 gives each client all ten labels about evenly; 0.1 one or two of them.
    assert largest_share(100.0) < 0.2 < 0.3 < largest_share(0.1)


def test_more_clients_than_examples_are_refused() -> None:
    with pytest.raises(ValueError, match="3 clients cannot share 2 examples"):
        partition_examples(np.array([0, 1]), 3, "iid")
