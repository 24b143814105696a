"""An app of the older kind: a NumPyClient that client_fn makes."""

import numpy as np
from flwr.app import ArrayRecord, Context
from flwr.client import Client, NumPyClient
from flwr.clientapp import ClientApp

from apps import Mod


def initial_arrays() -> ArrayRecord:
    return ArrayRecord([np.zeros((3, 4), np.float32), np.zeros(3, np.float32)])


class TargetClient(NumPyClient):
    def __init__(self, client: int) -> None:
        rng = np.random.default_rng(client)
        self.targets = [rng.normal(size=s).astype(np.float32) for s in ((3, 4), (3,))]
        self.num_examples = client + 1

    def fit(self, parameters, config):
        moved = [(w + t) / 2 for w, t in zip(parameters, self.targets, strict=True)]
        return moved, self.num_examples, {"round": config["server-round"], "kind": "old"}

    def evaluate(self, parameters, config):
        loss = sum(((w - t) ** 2).sum() for w, t in zip(parameters, self.targets, strict=True))
        return float(loss), self.num_examples, {"distance": float(loss) ** 0.5}


def client_fn(context: Context) -> Client:
    return TargetClient(int(context.node_config["partition-id"])).to_client()


def make_app(*mods: Mod) -> ClientApp:
    return ClientApp(client_fn, mods=list(mods))
