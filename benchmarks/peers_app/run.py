"""Has one peer do its task: `python -m run MODULE`, with the task in the environment."""

import importlib
import sys

import torch
from work import LR, Task, make_model

if __name__ == "__main__":
    torch.set_num_threads(1)
    told = Task.told()
    # PyTorch imports much of itself with the first optimizer. Processes that a peer forks in each
    # round would each do so.
    torch.optim.SGD(make_model(told.work).parameters(), lr=LR)
    # As a module, so that the processes that it starts can import it too.
    importlib.import_module(sys.argv[1]).run(told)
