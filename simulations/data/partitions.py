"""Which client holds which training examples, by Flower's partitioners."""

import warnings
from math import gcd
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pncs_flower.randomness import derive_seed, generator

if TYPE_CHECKING:
    from flwr_datasets.partitioner import Partitioner


def partition_examples(
    labels: NDArray[np.int64], num_clients: int, scheme: str = "shards", **options: Any
) -> list[NDArray[np.int64]]:
    """Return the indices of each client's examples; for the options see `draw_partition`."""
    partitioner = draw_partition(labels, num_clients, scheme, **options)
    parts = [partitioner.load_partition(client) for client in range(num_clients)]
    # As NumPy from the start: a column read value by value takes a minute for a million examples.
    return [np.asarray(part.with_format("numpy")["example"][:], np.int64) for part in parts]


def draw_partition(
    labels: NDArray[np.int64],
    num_clients: int,
    scheme: str = "shards",
    *,
    shards_per_client: int = 2,
    dirichlet_alpha: float = 0.5,
    seed: int = 0,
) -> "Partitioner":
    """Return a partitioner that has divided the examples, or say why they cannot be divided so."""
    if num_clients < 1 or num_clients > len(labels):
        raise ValueError(
            f"{num_clients} clients cannot share {len(labels)} examples: have between 1 and "
            f"{len(labels)} clients"
        )
    from datasets import Dataset
    from flwr_datasets import partitioner as partitioners

    partitioner: Partitioner
    chosen = np.arange(len(labels))
    if scheme == "shards":
        # Each of one label, and of every label as many: what does not fill one is left out.
        shard_size, shards_per_class = _shard_size(labels, num_clients, shards_per_client)
        keep = shard_size * shards_per_class
        chosen = np.concatenate([np.flatnonzero(labels == c)[:keep] for c in np.unique(labels)])
        partitioner = partitioners.ShardPartitioner(
            num_clients,
            partition_by="label",
            num_shards_per_partition=shards_per_client,
            shard_size=shard_size,
            seed=derive_seed(seed, "partition"),
        )
    elif scheme == "dirichlet":
        partitioner = partitioners.DirichletPartitioner(
            num_clients,
            partition_by="label",
            alpha=float(dirichlet_alpha),
            min_partition_size=1,
            seed=derive_seed(seed, "partition"),
        )
    else:
        chosen = generator(seed, "partition").permutation(len(labels))
        partitioner = partitioners.IidPartitioner(num_clients)
    partitioner.dataset = Dataset.from_dict({"label": labels[chosen], "example": chosen})
    try:
        with warnings.catch_warnings():
            # One warning for each redraw of a Dirichlet partition; giving up is an error.
            warnings.simplefilter("ignore")
            _ = partitioner.num_partitions  # which draws what is random, and copies no example
    except ValueError as error:
        raise ValueError(
            f"the examples cannot be divided among {num_clients} clients so that each has one: "
            f"have fewer clients, or a larger dirichlet-alpha ({error})"
        ) from error
    return partitioner


def _shard_size(
    labels: NDArray[np.int64], num_clients: int, shards_per_client: int
) -> tuple[int, int]:
    """Return how many examples a shard has, and how many shards each class gives."""
    classes, counts = np.unique(labels, return_counts=True)
    shards = num_clients * shards_per_client
    if shards % len(classes):
        per_client = len(classes) // gcd(num_clients, len(classes))
        clients = len(classes) // gcd(shards_per_client, len(classes))
        raise ValueError(
            f"{num_clients} clients x {shards_per_client} shards-per-client = {shards} shards "
            f"cannot be taken evenly from {len(classes)} classes: with {num_clients} clients use "
            f"a multiple of {per_client} shards-per-client, or with {shards_per_client} "
            f"shards-per-client a multiple of {clients} clients; or --set partition=iid"
        )
    shards_per_class = shards // len(classes)
    shard_size = int(counts.min()) // shards_per_class
    if shard_size < 1:
        raise ValueError(
            f"{shards_per_class} shards per class cannot be cut from {counts.min()} examples of "
            f"the smallest class: have at most {counts.min() * len(classes)} shards in all"
        )
    return shard_size, shards_per_class
