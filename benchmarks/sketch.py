"""Speed of sketches, beside the gradient that they summarise.

The layer is Linear(4096, 4096) with its bias, 16.8 million values; its gradient is that of one
batch (forward and backward pass in torch, float32). Both are timed in one thread, in one process,
in turns. "of gradient" is the time of the sketch in that of the gradient; bytes are those on the
wire.

Examples
--------
python benchmarks/sketch.py
python benchmarks/sketch.py --width 1024 --examples 1024 --sketches count:256 power-moments:256@int8
"""

import argparse

import numpy as np
import torch
from measure import machine, seconds

from pncs_flower.sketches.kinds import parse_sketch

SKETCHES = [
    "layers",
    "layers@int8",
    "coordinates:1000",
    "count:256",
    "count:4096",
    "power-moments:256",
    "power-moments:1000",
    "power-moments:1000@float16",
    "power-moments:1000@int8",
    "power-moments:4096",
]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--width", type=int, default=4096, help="inputs and outputs of the layer")
    parser.add_argument("--examples", type=int, default=4096, help="examples of the batch")
    parser.add_argument("--sketches", nargs="+", default=SKETCHES)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    layer = torch.nn.Linear(options.width, options.width)
    batch = torch.randn(options.examples, options.width)

    def gradient() -> None:
        layer.zero_grad()
        layer(batch).square().mean().backward()

    gradient()
    values = np.concatenate(
        [
            parameter.grad.numpy().ravel()
            for parameter in layer.parameters()
            if parameter.grad is not None
        ]
    )
    print(machine(), f"torch {torch.__version__}, one thread", sep=", ")
    print(f"gradient of {values.size} values over {options.examples} examples")
    print(f"{'sketch':<28} {'bytes':>10} {'seconds':>9} {'gradient':>9} {'of gradient':>12}")
    for spec in options.sketches:
        sketch = parse_sketch(spec)
        taken = seconds(lambda: sketch.encode(values, seed=0, round=1, layer="fc"))  # noqa: B023
        base = seconds(gradient, repeats=1)
        print(
            f"{spec:<28} {sketch.num_bytes(values.size):>10} {taken:>9.4f} {base:>9.3f} "
            f"{taken / base:>12.1%}",
            flush=True,
        )


if __name__ == "__main__":
    main()
