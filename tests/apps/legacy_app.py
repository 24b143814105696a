"""An app of the older interface with the two lines added; as a script, a part of a federation.

python legacy_app.py server PORT | client PORT NUMBER | ray CLIENTS. Server and ray print what was
chosen in each round, as JSON.
"""

import json
import sys
from collections.abc import Callable

from flwr.app import Context
from flwr.client import Client, start_client
from flwr.clientapp import ClientApp
from flwr.common import Parameters, ndarrays_to_parameters
from flwr.server import ServerApp, ServerAppComponents, ServerConfig, start_server
from flwr.server.client_proxy import ClientProxy
from flwr.server.strategy import FedAvg

from apps import client_fn_app
from pncs_flower.clients.legacy import SummaryClient
from pncs_flower.strategies import PNCS, SelectionStrategy
from pncs_flower.strategies.legacy import LegacySelection

ROUNDS = 4
OPTIONS = {"num_selected": 2, "queue_length": 2, "seed": 3}


def initial_parameters() -> Parameters:
    return ndarrays_to_parameters(client_fn_app.initial_arrays().to_numpy_ndarrays())


def base(**options) -> FedAvg:
    return FedAvg(
        initial_parameters=initial_parameters(),
        on_fit_config_fn=lambda number: {"server-round": number},
        **options,
    )


def make_strategy(selection: Callable[..., SelectionStrategy] = PNCS, **options) -> LegacySelection:
    return LegacySelection(base(), selection, **{**OPTIONS, **options})


def client_fn(context: Context) -> Client:
    return SummaryClient(client_fn_app.client_fn(context), context)


class DirectProxy(ClientProxy):
    """A client in this process. Calls go to it as Flower's server makes them, from a thread."""

    def __init__(self, number: int, client: Client) -> None:
        super().__init__(cid=f"{number * 7919 % 13:02}-{number}")  # in another order than the keys
        self.client = client

    def get_properties(self, ins, timeout, group_id):
        return self.client.get_properties(ins)

    def get_parameters(self, ins, timeout, group_id):
        return self.client.get_parameters(ins)

    def fit(self, ins, timeout, group_id):
        return self.client.fit(ins)

    def evaluate(self, ins, timeout, group_id):
        return self.client.evaluate(ins)

    def reconnect(self, ins, timeout, group_id):
        raise NotImplementedError


def _print_choices(strategy: LegacySelection) -> None:
    print(json.dumps([record.chosen for record in strategy.history]), flush=True)


def _run_on_ray(clients: int) -> None:
    from flwr.simulation import run_simulation

    strategy = make_strategy()
    server = ServerApp(
        server_fn=lambda _: ServerAppComponents(
            strategy=strategy, config=ServerConfig(num_rounds=ROUNDS)
        )
    )
    backend = {"client_resources": {"num_cpus": 1}, "init_args": {"num_cpus": 2}}
    run_simulation(server, ClientApp(client_fn), clients, backend_config=backend)
    _print_choices(strategy)


if __name__ == "__main__":
    role, *numbers = sys.argv[1:]
    if role == "ray":
        _run_on_ray(int(numbers[0]))
    elif role == "server":
        shared = make_strategy(min_clients=3)
        start_server(
            server_address=f"127.0.0.1:{numbers[0]}",
            config=ServerConfig(num_rounds=ROUNDS),
            strategy=shared,
        )
        _print_choices(shared)
    else:
        client = client_fn_app.TargetClient(int(numbers[1])).to_client()
        start_client(
            server_address=f"127.0.0.1:{numbers[0]}", client=SummaryClient(client, name=numbers[1])
        )
