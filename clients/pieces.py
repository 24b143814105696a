"""Examples in pieces, as a model is given them: copies, and never too few for it."""

from collections.abc import Iterator
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.random import fork_rng

__all__ = ["CHUNK", "Examples", "Pieces"]

Examples = tuple[Tensor, Tensor]

CHUNK = 1024
"""Examples per pass where only a sum over all of them is wanted: bounds memory, not the result."""


class Pieces:
    """The pieces that examples are divided into.

    What a model is given is a copy, since it may work in place on it (``nn.ReLU(inplace=True)`` as
    the first layer), and the examples are kept for the next pass, round and client.

    A last piece of one example is joined to the one before it where the model has batch
    normalization that would be left with one value for each channel, and refuse it. It is known
    from two examples, which are passed through the model in evaluation mode, if there is such a
    piece at all; all other models see the pieces that they always saw.

    Parameters
    ----------
    model : nn.Module
        In the mode in which it is given the pieces.
    examples : tuple of Tensor
        Inputs and targets: all that there are.
    """

    def __init__(self, model: nn.Module, examples: Examples) -> None:
        self._model = model
        self._inputs = examples[0]

    def of(self, examples: Examples) -> Iterator[Examples]:
        """Yield copies of some of the examples, at most `CHUNK` of them at a time, or one more.

        All are written to one place, each over the one before it: memory that is asked for anew
        takes longer than the pass of a small model.
        """
        inputs, targets = examples
        sizes = self.sizes(len(inputs), CHUNK)
        place = torch.empty_like(inputs[: max(sizes)])
        for some, answers in zip(inputs.split(sizes), targets.split(sizes), strict=True):
            yield place[: len(some)].copy_(some), answers.clone()

    def sizes(self, count: int, size: int) -> list[int]:
        """Return the sizes of pieces of at most ``size``, or one more, that make up ``count``.

        Raises
        ------
        ValueError
            If there is but one example, or one at a time, and the model cannot be given one.
        """
        whole, rest = divmod(count, size)
        sizes = [size] * whole + [rest] * bool(rest)
        if 1 in sizes and self._refuses_one:
            if 1 in (count, size):
                problem, remedy = (
                    ("there is one example", "leave this client out (eligible=)")
                    if count == 1
                    else ("batch-size is 1", "set it to 2 or more")
                )
                raise ValueError(
                    f"{problem}, but the model's batch normalization needs two values or more of "
                    f"each channel: {remedy}, or normalize otherwise (GroupNorm, LayerNorm)"
                )
            sizes[-2:] = [size + 1]
        return sizes

    @cached_property
    def _refuses_one(self) -> bool:
        norms = [
            module
            for module in self._model.modules()
            if isinstance(module, _BatchNorm) and (module.training or module.running_mean is None)
        ]
        if not norms:
            return False
        seen: list[bool] = []

        def look(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            seen.append(inputs[0].shape[2:].numel() == 1)

        hooks = [norm.register_forward_pre_hook(look) for norm in norms]
        training, device = self._model.training, self._inputs.device
        try:
            # Nothing of it is to be seen: neither in statistics nor in what is drawn at random.
            with torch.no_grad(), fork_rng([device] if device.type == "cuda" else []):
                self._model.eval()
                self._model(self._inputs[[0, -1]])  # a copy of two, or twice of the only one
        finally:
            for hook in hooks:
                hook.remove()
            self._model.train(training)
        return any(seen)
