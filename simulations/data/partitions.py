"""Which client holds which training examples, drawn as Flower Datasets' partitioners draw them."""

# Those are not used themselves: they want the examples as a table of the package datasets, which
# takes a second to import in every process, and ten more to hand out to 10,000 clients.

from math import gcd
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pncs_flower.plain_text import counted
from pncs_flower.randomness import derive_seed, generator

from .examples import classes_of

_DRAWS = 11  # of a Dirichlet partition that leaves a client without an example


def partition_examples(
    labels: NDArray[Any],
    num_clients: int,
    scheme: str = "shards",
    *,
    shards_per_client: int = 2,
    dirichlet_alpha: float = 0.5,
    owners: NDArray[np.int64] | None = None,
    seed: int = 0,
) -> list[NDArray[np.int64]]:
    """Return the indices of each client's examples, or say why they cannot be divided so.

    Labels that are numbers are divided as ten classes, a tenth of them each, by their size.

    ``owners`` says whose each example is, for the scheme ``"natural"``: of more owners than clients
    some are drawn, and the others take no part.
    """
    if scheme == "natural":
        return _natural(owners, num_clients, seed)
    if num_clients < 1 or num_clients > len(labels):
        raise ValueError(
            f"{counted(num_clients, 'client')} cannot share {counted(len(labels), 'example')}: "
            f"have between 1 and {counted(len(labels), 'client')}"
        )
    if scheme == "iid":
        return np.array_split(generator(seed, "partition").permutation(len(labels)), num_clients)
    labels = classes_of(labels)
    rng = np.random.default_rng(derive_seed(seed, "partition"))
    if scheme == "shards":
        parts = _draw_shards(labels, num_clients, shards_per_client, rng)
    else:
        parts = _draw_dirichlet(labels, num_clients, dirichlet_alpha, rng)
    for part in parts:
        rng.shuffle(part)
    return parts


def _natural(
    owners: NDArray[np.int64] | None, num_clients: int, seed: int
) -> list[NDArray[np.int64]]:
    """Give each client what is one owner's, in the order of the owners and of the examples."""
    if owners is None:
        raise ValueError(
            "partition = 'natural', but the data set names no clients: set client-column, if it "
            "has such a column (data sets of the Hugging Face hub), or choose another partition"
        )
    names = np.unique(owners)
    if not 1 <= num_clients <= len(names):
        raise ValueError(
            f"{counted(num_clients, 'client')} cannot be taken from the {len(names)} that the data "
            f"set names: have between 1 and {counted(len(names), 'client')}"
        )
    drawn = generator(seed, "partition").permutation(len(names))[:num_clients]
    order = np.argsort(owners, kind="stable")
    ends = np.searchsorted(owners[order], names, side="right")
    parts = np.split(order, ends[:-1])
    return [parts[place].astype(np.int64) for place in np.sort(drawn)]


def _draw_shards(
    labels: NDArray[np.int64], num_clients: int, shards_per_client: int, rng: np.random.Generator
) -> list[NDArray[np.int64]]:
    """Give each client shards of one label each; all labels have as many."""
    shard_size, shards_per_class = _shard_size(labels, num_clients, shards_per_client)
    keep = shard_size * shards_per_class  # what does not fill a shard is left out
    chosen = [np.flatnonzero(labels == label)[:keep] for label in np.unique(labels)]
    shards = np.concatenate(chosen).reshape(-1, shard_size)
    return [*shards[rng.permutation(len(shards))].reshape(num_clients, -1)]


def _draw_dirichlet(
    labels: NDArray[np.int64], num_clients: int, alpha: float, rng: np.random.Generator
) -> list[NDArray[np.int64]]:
    """Divide the examples of each label by a draw of its own."""
    for _ in range(_DRAWS):
        divided = []
        for label in np.unique(labels):
            examples = np.flatnonzero(labels == label)
            ends = np.cumsum(rng.dirichlet(np.full(num_clients, alpha))) * len(examples)
            divided.append(np.split(examples, ends.astype(np.int64)[:-1]))
        parts = [np.concatenate(pieces) for pieces in zip(*divided, strict=True)]
        if all(map(len, parts)):
            return parts
    raise ValueError(
        f"the examples cannot be divided among {counted(num_clients, 'client')} so that each has "
        f"one, in {_DRAWS} draws: have fewer clients, or a larger dirichlet-alpha than {alpha:g}"
    )


def _shard_size(
    labels: NDArray[np.int64], num_clients: int, shards_per_client: int
) -> tuple[int, int]:
    """Return how many examples a shard has, and how many shards each class gives."""
    classes, counts = np.unique(labels, return_counts=True)
    shards = num_clients * shards_per_client
    if shards % len(classes):
        per_client = len(classes) // gcd(num_clients, len(classes))
        clients = len(classes) // gcd(shards_per_client, len(classes))
        have = counted(num_clients, "client")
        raise ValueError(
            f"{have} x {shards_per_client} shards-per-client = {counted(shards, 'shard')} cannot "
            f"be taken evenly from {counted(len(classes), 'class', 'classes')}: have "
            f"{counted(clients, 'client')} or a multiple of it (--clients), or shards-per-client = "
            f"{per_client} or a multiple of it, or give --set partition=dirichlet, which any "
            "number of clients can have (in a file: dirichlet = [0.5] and shards = [])"
        )
    shards_per_class = shards // len(classes)
    shard_size = int(counts.min()) // shards_per_class
    if shard_size < 1:
        raise ValueError(
            f"{shards_per_class} shards per class cannot be cut from {counts.min()} examples of "
            f"the smallest class: have at most {counts.min() * len(classes)} shards in all, with "
            "fewer clients or shards-per-client"
        )
    return shard_size, shards_per_class
