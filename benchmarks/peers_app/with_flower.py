"""The work on Flower's simulation, as a plain Flower app, and on our engines."""

import logging
import time
from dataclasses import replace
from functools import lru_cache

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg, Strategy
from flwr.simulation import run_simulation
from torch import Tensor, nn
from work import LR, Task, Work, examples, first_model, make_model, tell, train

from pncs_flower.clients.pytorch import pytorch_client
from pncs_flower.simulations import InProcessGrid
from pncs_flower.strategies import UniformSelection

flowers_app = ClientApp()


@flowers_app.train()
def train_as_flowers_examples(message: Message, context: Context) -> Message:
    work = Task.told().work
    client, number = _client(context), int(message.content["config"]["server-round"])
    model = make_model(work)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    train(model, work, client, number)
    metrics = MetricRecord({"num-examples": len(examples(work)[client][0])})
    content = {"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}
    return Message(RecordDict(content), reply_to=message)


@lru_cache(maxsize=1)
def _model(work: Work) -> nn.Module:
    return make_model(work)  # once a process: its weights are overwritten


def _examples(context: Context) -> tuple[Tensor, Tensor]:
    return examples(Task.told().work)[_client(context)]


def _client(context: Context) -> int:
    return int(context.node_config["partition-id"])


our_app = pytorch_client(lambda context: _model(Task.told().work), _examples)


app_on_ray = ClientApp()


@app_on_ray.train()
def train_with_settings(message: Message, context: Context) -> Message:
    """Have our app answer with the settings that Flower's simulation, run so, cannot be given."""
    configured = replace(context, run_config=settings(Task.told().work))
    reply = our_app(message, configured)
    context.state = configured.state
    return reply


def settings(work: Work) -> dict[str, bool | float | int | str]:
    return {"lr": LR, "batch-size": work.batch_size, "device": "cpu"}


def run(task: Task) -> None:
    logging.getLogger("flwr").setLevel(logging.ERROR)
    base = FedAvg(fraction_evaluate=0.0, min_available_nodes=task.work.clients)
    if task.how == "flower-ray":
        on_ray(task, base, flowers_app)
    elif task.how == "ray":
        on_ray(task, UniformSelection(base, num_selected=task.work.clients), app_on_ray)
    else:
        examples(task.work)  # before there are workers, which have what is in memory by then
        strategy: Strategy = base
        if task.how == "in-process":
            strategy = UniformSelection(base, num_selected=task.work.clients)
        in_process(task, strategy)


def on_ray(task: Task, strategy: Strategy, client_app: ClientApp) -> None:
    server_app = ServerApp()

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        start(task, strategy, grid)

    run_simulation(
        server_app,
        client_app,
        task.work.clients,
        backend_config={
            "client_resources": {"num_cpus": 1},
            "init_args": {"num_cpus": task.workers, "log_to_driver": False},
        },
    )


def in_process(task: Task, strategy: Strategy) -> None:
    work = task.work
    with InProcessGrid(our_app, work.clients, settings(work), workers=task.workers) as grid:
        start(task, strategy, grid)


def start(task: Task, strategy: Strategy, grid: Grid) -> None:
    ends: list[float] = []

    def note(number: int, arrays: ArrayRecord) -> None:
        ends.append(time.perf_counter())

    first = ArrayRecord(first_model(task.work).state_dict())
    result = strategy.start(grid, first, num_rounds=task.rounds, evaluate_fn=note)
    # The first note is of the model before any round.
    tell(task, ends[1:], result.arrays.to_torch_state_dict())
