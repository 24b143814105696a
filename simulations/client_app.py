"""The clients of the app: the reference PyTorch client on this client's part of the data."""

from functools import lru_cache

import numpy as np
from flwr.app import Context
from numpy.typing import NDArray
from torch import Tensor, nn

from pncs_flower.clients.pytorch import pytorch_client

from .config import Config
from .inputs import empty_model, load_inputs
from .partitions import partition_examples

__all__ = ["app"]


def _make_model(context: Context) -> nn.Module:
    config = Config.from_run_config(context.run_config)
    return empty_model(config, load_inputs(config))


def _load_examples(context: Context) -> tuple[Tensor, Tensor]:
    config = Config.from_run_config(context.run_config)
    client, num_clients = _place(context)
    return load_inputs(config).train_tensors(_parts(config, num_clients)[client])


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
@lru_cache(maxsize=4)
def _parts(config: Config, num_clients: int) -> list[NDArray[np.int64]]:
    return partition_examples(
        load_inputs(config).train_labels,
        num_clients,
        config.partition,
        shards_per_client=config.shards_per_client,
        dirichlet_alpha=config.dirichlet_alpha,
        seed=config.seed,
    )


app = pytorch_client(_make_model, _load_examples)
