"""The work in pfl-research, by its own federated averaging: one process, or torchrun's."""

import time
from collections.abc import Iterator
from typing import Any

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.internal.ops import pytorch_ops
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor
from torch.nn.functional import cross_entropy
from work import LR, Task, batches, examples, first_model, tell


class Rounds(TrainingProcessCallback):
    """Knows the round, and notes when each ended."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    @property
    def number(self) -> int:
        return len(self.ends) + 1

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        self.ends.append(time.perf_counter())
        return False, Metrics()


def run(task: Task) -> None:
    work, rounds = task.work, Rounds()
    model = first_model(work)
    model.loss = lambda inputs, targets: cross_entropy(model(inputs), targets)
    # Its algorithm always evaluates in the first round, which is not timed.
    model.metrics = lambda inputs, targets: {"loss": Weighted(0.0, len(inputs))}

    class Examples(Dataset):
        def iter(self, batch_size: int | None) -> Iterator[tuple[Tensor, Tensor]]:
            return batches(work, int(self.user_id), rounds.number)

    def of_client(user: str) -> Dataset:
        return Examples(raw_data=examples(work)[int(user)], user_id=user)

    users = [str(client) for client in range(work.clients)]
    data = FederatedDataset(of_client, get_user_sampler("minimize_reuse", users))
    postprocessors: list[Any] = [WeightByDatapoints()]
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=task.rounds,
            evaluation_frequency=task.rounds + 1,
            train_cohort_size=work.clients,
            val_cohort_size=0,
        ),
        SimulatedBackend(training_data=data, val_data=data, postprocessors=postprocessors),
        PyTorchModel(model, torch.optim.SGD, torch.optim.SGD(model.parameters(), lr=1.0)),
        NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=LR, local_batch_size=work.batch_size
        ),
        NNEvalHyperParams(local_batch_size=None),
        callbacks=[rounds],
        send_metrics_to_platform=False,
    )
    if pytorch_ops.distributed.world_size != task.workers:
        raise RuntimeError(f"not in {task.workers} processes")
    if pytorch_ops.distributed.global_rank == 0:
        tell(task, rounds.ends, model.state_dict())
