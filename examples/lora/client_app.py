"""The clients: an app that trains adapters by LoRA, with one line added."""

import task
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor

from pncs_flower.clients import summary_mod

app = ClientApp(mods=[summary_mod])  # was: ClientApp()


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Train the adapters on this client's sentences."""
    model = task.load_model(msg.content.array_records["arrays"].to_torch_state_dict())
    examples = _examples(context)
    task.train(model, examples, float(context.run_config["lr"]))
    metrics = MetricRecord({"num-examples": len(examples)})
    content = RecordDict({"arrays": ArrayRecord(task.travelling(model)), "metrics": metrics})
    return Message(content, reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context) -> Message:
    """Say how well the model does on this client's sentences."""
    model = task.load_model(msg.content.array_records["arrays"].to_torch_state_dict())
    examples = _examples(context)
    metrics = MetricRecord(
        {"eval_loss": task.evaluate(model, examples), "num-examples": len(examples)}
    )
    return Message(RecordDict({"metrics": metrics}), reply_to=msg)


def _examples(context: Context) -> Tensor:
    place = context.node_config
    return task.load_data(int(place["partition-id"]), int(place["num-partitions"]))
