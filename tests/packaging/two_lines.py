"""Run the README's two lines in whatever environment this is started with.

``python tests/packaging/two_lines.py`` in an empty environment, after ``pip install dist/*.whl``,
tells whether the wheel has what it needs. It prints where the library came from.
"""

import re
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict

import pncs_flower

README = Path(__file__).resolve().parents[2] / "README.md"
ROUNDS = 20


def block(name: str) -> str:
    pattern = rf"^```python\n# --- {re.escape(name)} ---\n(.*?)^```"
    (text,) = re.findall(pattern, README.read_text(encoding="utf-8"), re.M | re.S)
    return str(text)


def answer(message: Message, context: Context) -> Message:
    """Train or evaluate: one step towards a target of this client's own."""
    client = int(context.node_config["partition-id"])
    weights = message.content["arrays"]["weights"].numpy()
    step = np.random.default_rng(client).normal(size=weights.shape).astype(weights.dtype) - weights
    content = RecordDict({"metrics": MetricRecord({"num-examples": 1 + client, "loss": 0.0})})
    if message.metadata.message_type == "train":
        content["arrays"] = ArrayRecord({"weights": Array(weights + step / 2)})
    return Message(content, reply_to=message)


def main() -> None:
    from pncs_flower.simulations import InProcessGrid

    client: dict[str, Any] = {}
    exec(block("client_app.py"), client)
    client["app"].train()(answer)
    client["app"].evaluate()(answer)
    made = []
    server: dict[str, Any] = {"initial_arrays": ArrayRecord({"weights": Array(np.zeros(64))})}
    exec(block("server_app.py"), server)
    strategy = server["PNCS"]
    server["PNCS"] = lambda *args, **options: made.append(strategy(*args, **options)) or made[-1]
    server["main"](InProcessGrid(client["app"], 10), None)
    delivered = [len(record.delivered) for record in made[0].history]
    assert delivered == [2] * ROUNDS, delivered
    print(Path(pncs_flower.__file__).parent)


if __name__ == "__main__":
    main()
