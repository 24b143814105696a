"""A run on Ray with a GPU that is only counted: prints what the clients were given, as JSON."""

import json

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg, Result
from flwr.simulation import run_simulation

from apps import numpy_app
from pncs_flower.clients import summary_mod
from pncs_flower.clients.device import choose_device, granted_gpus
from pncs_flower.strategies import RoundRobin

results: list[Result] = []
client_app = ClientApp(mods=[summary_mod])
server_app = ServerApp()


@client_app.train()
def train(message: Message, context: Context) -> Message:
    reply = numpy_app.train(message, context)
    metrics = reply.content["metrics"]
    metrics["gpus"] = len(granted_gpus() or [])
    metrics["on-cpu-if-wanted"] = int(choose_device("cpu").type == "cpu")
    try:
        choose_device("auto")
        metrics["refused-else"] = 0
    except RuntimeError:
        metrics["refused-else"] = 1
    return reply


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    strategy = RoundRobin(FedAvg(fraction_evaluate=0.0), num_selected=4)
    results.append(strategy.start(grid, numpy_app.initial_arrays(), num_rounds=1))


if __name__ == "__main__":
    run_simulation(
        server_app,
        client_app,
        4,
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.5},
            "init_args": {"num_cpus": 2, "num_gpus": 1},
        },
    )
    print(json.dumps(dict(results[0].train_metrics_clientapp[1])))
