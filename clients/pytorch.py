"""The reference PyTorch client: an app that trains, evaluates and answers every pre-round."""

import gc
import weakref
from collections.abc import Callable, Mapping
from functools import lru_cache
from io import BytesIO
from itertools import chain
from typing import Any, TypeVar

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from pncs_flower.messages.arrays import read_array
from pncs_flower.messages.records import make_array, make_record
from pncs_flower.protocol import LOSS, MAX_EXAMPLES, NUM_EXAMPLES
from pncs_flower.randomness import derive_seed

from . import training
from .device import choose_device
from .summary import SummaryMod, client_key
from .training import Examples, LossFunction

__all__ = ["pytorch_client"]

_Answer = TypeVar("_Answer")


def pytorch_client(
    make_model: Callable[[Context], nn.Module],
    load_examples: Callable[[Context], Examples],
    loss_function: LossFunction = cross_entropy,
) -> ClientApp:
    """Make a ClientApp that trains a PyTorch model by local SGD and answers every pre-round.

    The run config's ``lr``, ``momentum``, ``local-epochs`` and ``batch-size`` say how it trains
    (`LocalTraining`), ``device`` where (`choose_device`), ``precision`` in what forward passes
    compute (``"float32"``, the default, or ``"bfloat16"``), ``seed`` fixes all randomness together
    with the round and the client's key, and ``threads`` (default: 1; 0 leaves it to PyTorch) how
    many CPU threads take part: float sums depend on it, so bits match only where it is the same.

    Parameters
    ----------
    make_model : callable
        ``make_model(context) -> nn.Module``, on the CPU. Its weights are overwritten.
    load_examples : callable
        ``load_examples(context) -> (inputs, targets)``, this client's training data.
    loss_function : callable (default: cross entropy)
        Mean loss of outputs and targets.

    Returns
    -------
    ClientApp
        Its train function replies with the weights and the metrics ``num-examples``,
        ``train-loss``, and ``uniform-weight``, which is 1 for every client: a strategy that
        weighs by it takes the plain mean. Its evaluate function replies with the ``loss`` at the
        weights it is sent, over the same training examples.
    """
    parsed = _LastParsed()

    def prepare(message: Message, context: Context) -> tuple[nn.Module, Examples, int, str]:
        device = choose_device(str(context.run_config.get("device", "auto")))
        # The properties that Flower has for this build the record that they look into anew.
        arrays = next(r for r in message.content.values() if isinstance(r, ArrayRecord))
        model = make_model(context)
        model.load_state_dict(parsed.state(arrays))
        inputs, targets = load_examples(context)
        if len(inputs) == 0:
            raise ValueError(f"client {client_key(context)} has no training examples")
        seed = derive_seed(
            int(context.run_config.get("seed", 0)),
            "local training",
            _number(message, "server-round"),
            client_key(context),
        )
        precision = str(context.run_config.get("precision", "float32"))
        return _on(device, model), (inputs.to(device), targets.to(device)), seed, precision

    def gradient(message: Message, context: Context) -> ArrayRecord:
        model, examples, seed, precision = prepare(message, context)
        values = training.full_batch_gradient(model, examples, seed, loss_function, precision)
        return _record(values)

    mod = SummaryMod(
        gradient=lambda message, context: _reproducibly(message, context, gradient),
        num_examples=lambda context: len(load_examples(context)[0]),
        evaluate=lambda message, context: app(message, context),
        epochs=lambda context: training.LocalTraining.from_context(context).local_epochs,
    )
    app = ClientApp(mods=[mod, _reproducibly])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        model, examples, seed, precision = prepare(message, context)
        how = training.LocalTraining.from_context(context)
        loss = training.local_sgd(model, examples, how, seed, loss_function, precision)
        told = {NUM_EXAMPLES: len(examples[0]), "uniform-weight": 1.0, "train-loss": loss}
        metrics = make_record(MetricRecord, told)
        records = {"arrays": _record(model.state_dict()), "metrics": metrics}
        return Message(make_record(RecordDict, records), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        model, (inputs, targets), seed, precision = prepare(message, context)
        size = len(inputs)
        most = _number(message, MAX_EXAMPLES) or size
        if most < size:
            order = torch.Generator().manual_seed(seed)
            drawn = torch.randperm(size, generator=order)[:most].to(inputs.device)
            inputs, targets = inputs[drawn], targets[drawn]
        loss = training.mean_loss(model, (inputs, targets), loss_function, precision)
        metrics = MetricRecord({NUM_EXAMPLES: size, LOSS: loss})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


def _reproducibly(
    message: Message, context: Context, compute: Callable[[Message, Context], _Answer]
) -> _Answer:
    """Fix what a sum's last bits depend on, and leave the process and the GPU as they were."""
    cudnn = torch.backends.cudnn
    before = torch.get_num_threads(), torch.get_rng_state(), cudnn.deterministic, cudnn.benchmark
    threads = int(context.run_config.get("threads", 1))
    if threads > 0:
        torch.set_num_threads(threads)
    cudnn.deterministic, cudnn.benchmark = True, False  # it would choose by time
    try:
        return compute(message, context)
    finally:
        torch.set_num_threads(before[0])
        torch.set_rng_state(before[1])
        cudnn.deterministic, cudnn.benchmark = before[2:]
        # PyTorch would keep the memory for this process, and those who share a GPU are processes.
        if torch.cuda.is_initialized():
            gc.collect()
            torch.cuda.empty_cache()


def _on(device: torch.device, model: nn.Module) -> nn.Module:
    """Move a model, unless all of it is there: to look takes less than to have nothing moved."""
    if device.type == "cpu" and not torch.cuda.is_initialized():  # nothing has moved it yet
        return model
    values = chain(model.parameters(), model.buffers())
    return model if all(value.device == device for value in values) else model.to(device)


def _number(message: Message, name: str) -> int:
    """Return an entry of the message's config; 0 if it is not there."""
    records = message.content.values()
    config = next((r for r in records if isinstance(r, ConfigRecord)), None)
    return 0 if config is None else int(str(config.get(name, 0)))


def _record(tensors: Mapping[str, Tensor]) -> ArrayRecord:
    return make_record(ArrayRecord, {name: as_array(each) for name, each in tensors.items()})


def as_array(tensor: Tensor) -> Array:
    """Return what ``Array(tensor)`` does, with one copy of the values in place of four."""
    values = tensor.detach().cpu().numpy()
    if not values.flags.c_contiguous:
        return Array(values)
    dtype, header = _beginning(values.dtype, values.shape)
    return make_array(dtype, values.shape, "numpy.ndarray", b"".join((header, values.data)))


@lru_cache(maxsize=1024)
def _beginning(dtype: np.dtype[Any], shape: tuple[int, ...]) -> tuple[str, bytes]:
    """Return a dtype's name, and what is before the values where NumPy writes such an array."""
    file = BytesIO()
    whole = np.empty(shape, dtype)
    np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(whole))
    return str(dtype), file.getvalue()


class _LastParsed:
    """The weights last read: a process that plays many clients is sent the same ones each time."""

    def __init__(self) -> None:
        self._arrays: list[weakref.ref[Array]] = []
        self._state: dict[str, Tensor] = {}

    def state(self, arrays: ArrayRecord) -> Mapping[str, Tensor]:
        """Return the record's tensors, which must not be written to."""
        known = list(arrays) == list(self._state) and all(
            ref() is array for ref, array in zip(self._arrays, arrays.values(), strict=True)
        )
        if not known:
            self._arrays = [weakref.ref(array) for array in arrays.values()]
            # As Flower does, which has NumPy parse the header anew each time.
            self._state = {
                name: torch.from_numpy(read_array(array).copy()) for name, array in arrays.items()
            }
        return self._state
