"""Every rule around FedAvg with the reference PyTorch client, all messages included."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs pncs-flower[simulation]")

from flwr.app import ArrayRecord, Context  # noqa: E402
from flwr.serverapp.strategy import FedAvg  # noqa: E402
from torch import Tensor, nn  # noqa: E402

from pncs_flower.clients.pytorch import pytorch_client  # noqa: E402
from pncs_flower.simulations.run.in_process import InProcessGrid  # noqa: E402
from pncs_flower.strategies import (  # noqa: E402
    PNCS,
    ActiveFL,
    DivFL,
    FedCor,
    GradientNorm,
    Oort,
    PowerOfChoice,
    RoundRecord,
    SelectionStrategy,
)
from pncs_flower.strategies.rules.fedcor import Schedule  # noqa: E402

CLIENTS, ROUNDS, SELECTED = 6, 5, 2
SCHEDULE = Schedule(warm_up=1, interval=3, annealing=0.9, discount=0.9)

STRATEGIES: dict[str, Callable[..., SelectionStrategy]] = {
    "PNCS, some asked": partial(PNCS, candidates=3, queue_length=0),
    "ActiveFL": ActiveFL,
    "pow-d": partial(PowerOfChoice, candidates=4),
    "cpow-d": partial(PowerOfChoice, candidates=4, variant="cpow-d", batch_size=2),
    "rpow-d": partial(PowerOfChoice, candidates=4, variant="rpow-d"),
    "FedCor": partial(FedCor, schedule=SCHEDULE),
    "DivFL": partial(DivFL, summary="gradient"),
    "DivFL, stale": partial(DivFL, stale=True, sketch="count:4"),
    "gradient norm": GradientNorm,
    "Oort": Oort,
    "Oort with a queue": partial(Oort, queue_length=4),
}
ASKED = {
    "PNCS, some asked": [3, 3, 3, 3, 3],
    "ActiveFL": [0, 0, 0, 0, 0],
    "pow-d": [4, 4, 4, 4, 4],
    "cpow-d": [4, 4, 4, 4, 4],
    "rpow-d": [0, 0, 0, 0, 0],
    "FedCor": [6, 6, 0, 6, 6],  # around rounds 1 and 4
    "DivFL": [6, 6, 6, 6, 6],
    "DivFL, stale": [6, 2, 2, 2, 2],
    "gradient norm": [6, 6, 6, 6, 6],
    "Oort": [0, 0, 0, 0, 0],
    "Oort with a queue": [0, 0, 0, 0, 0],
}


def load_examples(context: Context) -> tuple[Tensor, Tensor]:
    """Give each client its own class, and client k 4 + k examples."""
    client = int(context.node_config["partition-id"])
    rng = torch.Generator().manual_seed(client)
    inputs = torch.randn(4 + client, 3, generator=rng) + torch.eye(3)[client % 3]
    return inputs, torch.full((4 + client,), client % 3)


def run(
    name: str, rounds: int = ROUNDS, checkpoint: Path | None = None
) -> tuple[list[RoundRecord], dict[str, Tensor]]:
    torch.manual_seed(0)
    initial = ArrayRecord(nn.Linear(3, 3).state_dict())
    app = pytorch_client(lambda context: nn.Linear(3, 3), load_examples)
    grid = InProcessGrid(app, CLIENTS, {"lr": 0.1, "device": "cpu", "batch-size": 4})
    base = FedAvg(fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=1)
    strategy = STRATEGIES[name](base, checkpoint=checkpoint)
    result = strategy.start(grid, initial, num_rounds=rounds)
    return strategy.history, result.arrays.to_torch_state_dict()


@pytest.mark.parametrize("name", STRATEGIES)
def test_rule_runs_end_to_end(name: str) -> None:
    history, _ = run(name)
    assert [len(record.asked) for record in history] == ASKED[name]
    assert all(record.delivered == record.chosen for record in history)
    assert all(len(record.chosen) == SELECTED for record in history)
    assert all(not record.rejected for record in history)


@pytest.mark.parametrize("name", STRATEGIES)
def test_run_goes_on_from_its_checkpoint(name: str, tmp_path: Path) -> None:
    _, whole = run(name)
    run(name, 3, tmp_path)
    _, resumed = run(name, ROUNDS, tmp_path)
    assert all(torch.equal(whole[key], resumed[key]) for key in whole)
