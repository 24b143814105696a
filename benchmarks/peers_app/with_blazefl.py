"""The work in BlazeFL, by its own FedAvg: one client after the other, threads, or processes."""

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from blazefl.contrib.fedavg import (
    FedAvgBaseClientTrainer,
    FedAvgBaseServerHandler,
    FedAvgProcessPoolClientTrainer,
    FedAvgThreadPoolClientTrainer,
)
from blazefl.core import IPCMode
from torch import Tensor, nn
from work import LR, Task, Work, batches, examples, first_model, make_model, tell


class Batches:
    """What stands for a DataLoader, which would take longer to put a batch together."""

    def __init__(self, work: Work, client: int, number: int) -> None:
        self.dataset = None  # BlazeFL hands it back when the client has trained
        self._of = work, client, number

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return batches(*self._of)


class Clients:
    """The data of all clients and their model, small to send: processes have the examples."""

    def __init__(self, work: Work) -> None:
        self.work, self.number = work, 0

    def select_model(self, model_name: str) -> nn.Module:
        return make_model(self.work)

    def get_dataloader(self, cid: int, **options: Any) -> Batches:
        return Batches(self.work, cid, self.number)

    def set_dataset(self, **options: Any) -> None:
        """Keep nothing: the examples stay as they are."""


def run(task: Task) -> None:
    work = task.work
    examples(work)  # before there are processes, which have what is in memory by then
    clients = Clients(work)
    server = FedAvgBaseServerHandler(
        model_selector=clients,
        model_name=work.model,
        dataset=clients,
        global_round=task.rounds,
        num_clients=work.clients,
        sample_ratio=1.0,
        device="cpu",
        batch_size=work.batch_size,
        seed=0,
    )
    server.model.load_state_dict(first_model(work).state_dict())
    options: dict[str, Any] = {
        "model_selector": clients,
        "model_name": work.model,
        "dataset": clients,
        "device": "cpu",
        "num_clients": work.clients,
        "epochs": 1,
        "batch_size": work.batch_size,
        "lr": LR,
        "seed": 0,
    }
    if task.how == "serial":
        trainer = FedAvgBaseClientTrainer(**options)
    elif task.how == "threads":
        trainer = FedAvgThreadPoolClientTrainer(**options, num_parallels=task.workers)
    else:
        folder = Path(tempfile.mkdtemp())
        trainer = FedAvgProcessPoolClientTrainer(
            **options,
            num_parallels=task.workers,
            share_dir=folder / "share",
            state_dir=folder / "state",
            ipc_mode=IPCMode.SHARED_MEMORY,
        )
    ends = []
    while not server.if_stop():
        clients.number += 1
        trainer.local_process(server.downlink_package(), server.sample_clients())
        for package in trainer.uplink_package():
            server.load(package)
        ends.append(time.perf_counter())
    tell(task, ends, server.model.state_dict())
