"""Like quickstart-jax: a tree of arrays sent as a list, half of the clients trained in a round."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result

from apps import Mod

from . import Config, Select

RUN_CONFIG: Config = {"num-server-rounds": 3, "fraction-train": 0.5, "learning-rate": 0.5}
Tree = dict[str, dict[str, jax.Array]]
TREE: Tree = {
    "dense0": {"kernel": jnp.full((6, 5), 0.1), "bias": jnp.linspace(-0.5, 0.5, 5)},
    "dense1": {"kernel": jnp.full((5, 3), -0.1), "bias": jnp.zeros(3)},
}


def get_params(tree: Tree) -> list[np.ndarray]:
    return [np.array(leaf) for leaf in jax.tree_util.tree_leaves(tree)]


def set_params(arrays: list[np.ndarray]) -> Tree:
    tree: Tree = jax.tree_util.tree_unflatten(jax.tree_util.tree_structure(TREE), arrays)
    return tree


def load_data(context: Context) -> tuple[np.ndarray, np.ndarray]:
    client = int(context.node_config["partition-id"])
    rng = np.random.default_rng(client)
    labels = (np.arange(24) % 2 + client) % 3
    return (rng.normal(size=(24, 6)) + np.eye(3, 6)[labels] * 2).astype(np.float32), labels


def loss_and_accuracy(tree: Tree, values: jax.Array, labels: jax.Array) -> tuple[jax.Array, ...]:
    hidden = jax.nn.relu(values @ tree["dense0"]["kernel"] + tree["dense0"]["bias"])
    outputs = hidden @ tree["dense1"]["kernel"] + tree["dense1"]["bias"]
    chosen = jnp.take_along_axis(jax.nn.log_softmax(outputs), labels[:, None], axis=1)
    return -chosen.mean(), (outputs.argmax(-1) == labels).mean()


@partial(jax.jit, static_argnames="lr")
def step(tree: Tree, values: jax.Array, labels: jax.Array, lr: float) -> tuple[Tree, jax.Array]:
    slope = jax.value_and_grad(loss_and_accuracy, has_aux=True)
    (loss, _), gradients = slope(tree, values, labels)
    return jax.tree_util.tree_map(lambda w, g: w - lr * g, tree, gradients), loss


def make_client_app(*mods: Mod) -> ClientApp:
    app = ClientApp(mods=list(mods))

    @app.train()
    def train(message: Message, context: Context) -> Message:
        tree = set_params(message.content["arrays"].to_numpy_ndarrays())
        values, labels = load_data(context)
        for half in (slice(12), slice(12, None)):
            lr = float(context.run_config["learning-rate"])
            tree, loss = step(tree, values[half], labels[half], lr)
        metrics = MetricRecord({"train_loss": float(loss), "num-examples": len(labels)})
        content = RecordDict({"arrays": ArrayRecord(get_params(tree)), "metrics": metrics})
        return Message(content, reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        tree = set_params(message.content["arrays"].to_numpy_ndarrays())
        loss, accuracy = loss_and_accuracy(tree, *load_data(context))
        metrics = {"eval_loss": float(loss), "eval_acc": float(accuracy), "num-examples": 24}
        return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)

    return app


def main(grid: Grid, config: Config, select: Select) -> Result:
    strategy = select(FedAvg(fraction_train=float(config["fraction-train"])))
    return strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(get_params(TREE)),
        num_rounds=int(config["num-server-rounds"]),
    )
