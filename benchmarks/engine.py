"""What the in-process engine adds to the training itself.

A FedAvg round of Flower's strategy through the engine and the reference client,
with every client training (a 4100x10 linear layer, one step on 32 examples each, one thread),
beside a plain PyTorch loop that does the same work: per client its own copy of the weights, SGD,
and the weighted mean. Between the two, the least that Flower's messages cost: the plain loop, but
each client's weights go into a message, and Flower's FedAvg takes the mean. All end with the same
weights up to rounding, which is checked. Rounds of the three take turns. All times are processor
times, of which other programs take no part.

Examples
--------
python benchmarks/engine.py
python benchmarks/engine.py --clients 10 100 --rounds 20
"""

import argparse
import copy
import logging
import statistics
import time

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg
from measure import machine
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from pncs_flower.clients.pytorch import pytorch_client
from pncs_flower.simulations.run.in_process import InProcessGrid

INPUTS, CLASSES, EXAMPLES, RATE = 4100, 10, 32, 0.1


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--rounds", type=int, default=10, help="of each size, after one for warmth")
    options = parser.parse_args(arguments)
    logging.getLogger("flwr").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    print(f"{machine()}, torch {torch.__version__}")
    by_messages = f"{'messages ms':>12} {'ratio':>6}"
    print(f"{'clients':>8} {'plain ms':>9} {by_messages} {'engine ms':>10} {'ratio':>6}")
    for clients in options.clients:
        plain, messages, engine = compare(clients, options.rounds)
        print(
            f"{clients:>8} {plain * 1e3:>9.1f} {messages * 1e3:>12.1f} {messages / plain:>6.2f} "
            f"{engine * 1e3:>10.1f} {engine / plain:>6.2f}",
            flush=True,
        )


def compare(clients: int, rounds: int) -> tuple[float, float, float]:
    """Return the median processor seconds of a round of each, checked to do the same."""
    random = torch.Generator().manual_seed(0)
    data = [
        (
            torch.randn(EXAMPLES, INPUTS, generator=random),
            torch.randint(0, CLASSES, (EXAMPLES,), generator=random),
        )
        for _ in range(clients)
    ]
    model = nn.Linear(INPUTS, CLASSES)
    plain_weights = copy.deepcopy(model.state_dict())
    arrays = by_messages = ArrayRecord(model.state_dict())
    app = pytorch_client(
        lambda context: model,
        lambda context: data[int(context.node_config["partition-id"])],
    )
    grid = InProcessGrid(app, clients, {"lr": RATE, "batch-size": 0, "device": "cpu"})
    strategy = FedAvg(fraction_evaluate=0.0)
    worker = copy.deepcopy(model)
    plain, least, engine = [], [], []
    for number in range(rounds + 1):
        start = time.process_time()
        plain_weights = plain_round(worker, plain_weights, data)
        plain.append(time.process_time() - start)
        start = time.process_time()
        by_messages = message_round(worker, by_messages, data, strategy)
        least.append(time.process_time() - start)
        start = time.process_time()
        messages = strategy.configure_train(number + 1, arrays, ConfigRecord(), grid)
        replies = grid.send_and_receive(messages)
        result, _ = strategy.aggregate_train(number + 1, replies)
        engine.append(time.process_time() - start)
        if result is None:
            raise RuntimeError("the engine's round came to nothing")
        arrays = result
    for record in (arrays, by_messages):
        for name, value in record.to_torch_state_dict().items():
            torch.testing.assert_close(value, plain_weights[name], rtol=1e-4, atol=1e-5)
    return tuple(statistics.median(times[1:]) for times in (plain, least, engine))


def plain_round(
    model: nn.Module, weights: dict[str, Tensor], data: list[tuple[Tensor, Tensor]]
) -> dict[str, Tensor]:
    """Train every client from the same weights and return the mean, as a tutorial would."""
    total = {name: torch.zeros_like(value) for name, value in weights.items()}
    for inputs, targets in data:
        train(model, weights, inputs, targets)
        for name, value in model.state_dict().items():
            total[name] += value * (len(inputs) / (EXAMPLES * len(data)))
    return total


def message_round(
    model: nn.Module,
    weights: ArrayRecord,
    data: list[tuple[Tensor, Tensor]],
    strategy: FedAvg,
) -> ArrayRecord:
    """Do the same, with a message of Flower's from each client, and Flower's mean."""
    state = weights.to_torch_state_dict()
    replies = []
    for inputs, targets in data:
        train(model, state, inputs, targets)
        metrics = MetricRecord({"num-examples": len(inputs)})
        content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
        replies.append(Message(content, reply_to=Message(RecordDict(), 1, "train")))
    result, _ = strategy.aggregate_train(1, replies)
    if result is None:
        raise RuntimeError("the messages came to nothing")
    return result


def train(model: nn.Module, weights: dict[str, Tensor], inputs: Tensor, targets: Tensor) -> None:
    """Take one step from the weights."""
    model.load_state_dict(weights)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    optimizer.zero_grad()
    cross_entropy(model(inputs), targets).backward()
    optimizer.step()


if __name__ == "__main__":
    main()
