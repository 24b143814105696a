"""The work in a plain PyTorch loop, which all others are compared with."""

import time

import torch
from work import Task, examples, first_model, tell, train


def run(task: Task) -> None:
    work = task.work
    sizes = [len(inputs) for inputs, _ in examples(work)]
    model = first_model(work)
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    ends = []
    for number in range(1, task.rounds + 1):
        total = {name: torch.zeros_like(value) for name, value in weights.items()}
        for client, size in enumerate(sizes):
            model.load_state_dict(weights)
            train(model, work, client, number)
            for name, value in model.state_dict().items():
                total[name] += value * (size / sum(sizes))
        weights = total
        ends.append(time.perf_counter())
    tell(task, ends, weights)
