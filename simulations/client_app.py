"""The clients of the app: the reference PyTorch client on this client's part of the data."""

from functools import lru_cache

from flwr.app import Context
from torch import Tensor, nn

from pncs_flower.clients.pytorch import pytorch_client

from .config import Agreeing, Config, Scalar
from .machine.limits import usable_cpus, usable_memory
from .objective import loss_function
from .task import empty_model, load_inputs

_SHARE_IF_UNKNOWN = 1 << 30

Examples = tuple[Tensor, Tensor]


def _config(context: Context) -> Config:
    return _parsed(tuple(context.run_config.items()))


# Every message of every client brings the same settings.
@lru_cache(maxsize=1)
def _parsed(settings: tuple[tuple[str, Scalar], ...]) -> Config:
    return Config.from_run_config(dict(settings))


def _make_model(context: Context) -> nn.Module:
    return _model(_config(context))


# One for all clients of a process, who overwrite its weights and keep nothing else in it.
@lru_cache(maxsize=1)
def _model(config: Config) -> nn.Module:
    return empty_model(config, load_inputs(config))


def _load_examples(context: Context) -> Examples:
    client, num_clients = _place(context)
    return _holdings(_config(context).of_parts(), num_clients).examples(client)


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


class Holdings:
    """What the clients of one run hold, copied out of the data set when first asked for."""

    # Copies are kept while there is room: each of the processes that play clients, one for each
    # core, then has its own. Beyond that an answer is copied anew out of the data set, which is
    # memory-mapped, and so one for all processes, where it comes from frozen layers.

    def __init__(self, config: Config, num_clients: int, room: int) -> None:
        self._inputs = load_inputs(config)
        self._parts = self._inputs.divide(config, num_clients)
        self._room = room
        self._kept: dict[int, Examples] = {}

    def examples(self, client: int) -> Examples:
        """Return inputs and labels of a client."""
        if client in self._kept:
            return self._kept[client]
        found = self._inputs.train_tensors(self._parts[client])
        size = sum(tensor.nbytes for tensor in found)
        if size <= self._room:
            self._room -= size
            self._kept[client] = found
        return found


def _share_of_memory() -> int:
    """Return the bytes that copies may take in this process: all together, a quarter of memory."""
    memory = usable_memory()
    if memory is None:
        return _SHARE_IF_UNKNOWN
    return memory // (4 * usable_cpus())


# One process plays many clients, each many times, and runs one after the other that differ in
# their rule. Of one partition at a time, so that it holds at most one copy of the examples.
@lru_cache(maxsize=1)
def _holdings(agreeing: Agreeing, num_clients: int) -> Holdings:
    return Holdings(agreeing.config, num_clients, _share_of_memory())


app = pytorch_client(_make_model, _load_examples, loss_function)
