"""The clients of the app: the reference PyTorch client on this client's part of the data."""

from functools import cache

import numpy as np
import torch
from flwr.app import Context
from numpy.typing import NDArray
from torch import Tensor, nn

from pncs_flower.clients.pytorch import pytorch_client

from .config import Config
from .data import as_float, load_dataset
from .models import build_model
from .partitions import partition_examples

__all__ = ["app"]


def _make_model(context: Context) -> nn.Module:
    config = Config.from_run_config(context.run_config)
    data = load_dataset(config.dataset, config.data_dir)
    return build_model(config.model, data.image_shape, data.num_classes, config.seed)


def _load_examples(context: Context) -> tuple[Tensor, Tensor]:
    config = Config.from_run_config(context.run_config)
    client, num_clients = _place(context)
    data = load_dataset(config.dataset, config.data_dir)
    examples = _parts(
        config.dataset,
        config.data_dir,
        num_clients,
        config.partition,
        config.shards_per_client,
        config.dirichlet_alpha,
        config.seed,
    )[client]
    images = as_float(data.train_images[examples], data.max_value)
    return torch.from_numpy(images), torch.from_numpy(data.train_labels[examples])


def _place(context: Context) -> tuple[int, int]:
    try:
        client = int(context.node_config["partition-id"])
        num_clients = int(context.node_config["num-partitions"])
    except KeyError as missing:
        raise ValueError(
            f"this client's node config lacks {missing}: start its SuperNode with "
            '--node-config "partition-id=0 num-partitions=10", each with its own partition-id'
        ) from None
    if not 0 <= client < num_clients:
        raise ValueError(
            f"partition-id {client} must be between 0 and num-partitions - 1 = {num_clients - 1}"
        )
    return client, num_clients


# One process plays many clients, each many times.
@cache
def _parts(
    dataset: str,
    data_dir: str,
    num_clients: int,
    scheme: str,
    shards_per_client: int,
    dirichlet_alpha: float,
    seed: int,
) -> list[NDArray[np.int64]]:
    return partition_examples(
        load_dataset(dataset, data_dir).train_labels,
        num_clients,
        scheme,
        shards_per_client=shards_per_client,
        dirichlet_alpha=dirichlet_alpha,
        seed=seed,
    )


app = pytorch_client(_make_model, _load_examples)
