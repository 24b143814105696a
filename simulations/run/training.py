"""One run, on whatever grid it is given: strategy, model, evaluation and results."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from torch import Tensor, nn

from pncs_flower.clients.device import choose_device, compute_in
from pncs_flower.clients.training import Pieces
from pncs_flower.plain_text import counted
from pncs_flower.strategies import EmptyRoundsError, RoundRecord
from pncs_flower.strategies.resume.settings import installed_version

from ..config import Config
from ..objective import CLASSES, objective_of, r_squared
from ..scores import ACCURACY, SCORES
from ..task import Inputs, initial_model, load_inputs
from .early_stopping import LAST, is_stopped, stop_note, stopped_after
from .folder import finish, open_run
from .served import Served
from .strategy import build_strategy
from .watch import TENSORBOARD, RunWatch, open_tensorboard

_PACKAGES = ("pncs-flower", "flwr", "torch", "numpy")


class Evaluation(NamedTuple):
    """How good a model is on test examples."""

    score: float  # accuracy, 0 to 1, or R²
    loss: float  # mean cross-entropy, or mean squared error
    by_class: tuple[float | None, ...]  # accuracy for the examples of each class, if it has any
    name: str = ACCURACY  # of the score

    @property
    def scores(self) -> dict[str, float]:
        """The score by its name, and the loss."""
        return {self.name: self.score, "loss": self.loss}


def evaluate(
    model: nn.Module, examples: Tensor, labels: Tensor, precision: str = "float32"
) -> Evaluation:
    """Return how good a model is, in one pass."""
    model.eval()
    objective = objective_of(labels)
    right, loss = torch.zeros(1, dtype=torch.int64, device=labels.device), 0.0
    with torch.inference_mode(), compute_in(precision, examples.device):
        for inputs, answers in Pieces(model, (examples, labels)).of((examples, labels)):
            outputs = model(inputs)
            loss += float(objective.loss(outputs, answers, reduction="sum"))
            if objective is CLASSES:
                hits = answers[outputs.argmax(1) == answers]
                right = right + torch.bincount(hits, minlength=outputs.shape[1])
    if objective is not CLASSES:
        error = loss / len(labels)
        return Evaluation(r_squared(error, labels), error, (), objective.score)
    correct, tested = right.tolist(), torch.bincount(labels, minlength=len(right)).tolist()
    by_class = (r / n if n else None for r, n in zip(correct, tested, strict=True))
    return Evaluation(sum(correct) / len(labels), loss / len(labels), tuple(by_class))


def train(
    grid: Grid, config: Config, output: Path, on_round: Callable[[Mapping[str, Any]], None]
) -> None:
    """Train and leave the results in a folder; ``on_round`` gets each round's row at its end."""
    # A row is a `RoundRecord` with ``accuracy`` (or ``r2``) and ``loss`` on the test examples,
    # ``elapsed`` (seconds since training began), what `served.KEYS` names, and of PNCS with few
    # clients ``similarity``.
    inputs = load_inputs(config)
    model = initial_model(config, inputs)
    initial = ArrayRecord(model.state_dict())
    log_round = open_tensorboard(output / TENSORBOARD) if config.tensorboard else None
    strategy = build_strategy(config, output, log_round)
    history = strategy.history
    watch, served = RunWatch(history, inputs.score), Served(config)
    strategy.listeners.append(watch)
    device = choose_device("cpu" if config.device == "cpu" else "auto")
    examples, labels = (tensor.to(device) for tensor in inputs.test_tensors())
    model.to(device)

    def evaluate_now() -> Evaluation:
        found = evaluate(model, examples, labels, config.precision)
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()  # the clients' processes share the GPU
        return found

    first = evaluate_now().scores

    def after_round(number: int, arrays: ArrayRecord) -> MetricRecord:
        if number == 0:
            return MetricRecord({**first})
        model.load_state_dict(arrays.to_torch_state_dict())
        found, record = evaluate_now(), history[-1]
        record.extra |= {**_finite(found.scores), "elapsed": watch.elapsed}
        record.extra |= served.after(history, found.by_class, strategy.num_clients)
        scores = [first[inputs.score], *(each.extra[inputs.score] for each in history)]
        last = number == config.num_rounds
        if not last and (note := stop_note(scores, config.stop_after, SCORES[inputs.score])):
            record.notes.append(note)
            last = True
        on_round(record.to_dict())
        if last and not any(record.delivered for record in history):
            raise _without_an_update(history)
        return MetricRecord({**found.scores})

    def should_stop(number: int, result: Result) -> bool:
        return is_stopped(history[-1].notes)

    with open_run(output, config):
        result = strategy.start(
            grid,
            initial,
            num_rounds=config.num_rounds,
            evaluate_fn=after_round,
            should_stop=should_stop if config.stop_after else None,
        )
        weights = {name: array.numpy() for name, array in result.arrays.items()}
        rows = [record.to_dict() for record in history]
        summary = _summary(rows, _finite(first), str(device), inputs) | served.summary(rows[-1])
        finish(output, rows, weights, summary)


def _without_an_update(history: Sequence[RoundRecord]) -> EmptyRoundsError:
    """Say that all rounds of a run were empty, but too few for the library's limit on them."""
    reasons = history[-1].reasons("training").items()
    why = "; ".join(f"client {key}: {reason}" for key, reason in reasons) or "none is given"
    rounds = f"no client delivered an update in any of {counted(len(history), 'round')}"
    return EmptyRoundsError(f"{rounds}, in the last one for this reason: {why}")


def _finite(scores: Mapping[str, float]) -> dict[str, float | None]:
    """Return scores as JSON has them: without a loss that is not finite."""
    return {name: value if math.isfinite(value) else None for name, value in scores.items()}


def simulated_seconds(rows: Sequence[Mapping[str, Any]]) -> float | None:
    """Return what rounds would have taken on the clients' devices; None where these are not."""
    if not rows or rows[-1].get("clock") is None:
        return None
    return math.fsum(second for row in rows for second in row["simulated_seconds"].values())


def _summary(
    rows: list[dict[str, Any]], first: Mapping[str, Any], server_device: str, inputs: Inputs
) -> dict[str, Any]:
    name = inputs.score
    scores = [row[name] for row in rows]
    return {
        "rounds": len(rows),
        "stopped-after-round": stopped_after(rows),
        f"initial-{name}": first[name],
        "initial-loss": first["loss"],
        f"final-{name}": scores[-1],
        "final-loss": rows[-1]["loss"],
        f"best-{name}": max(scores),
        f"mean-{name}-of-last-5-rounds": sum(scores[-LAST:]) / len(scores[-LAST:]),
        "seconds": rows[-1]["elapsed"],
        "simulated-seconds": simulated_seconds(rows),
        "bytes-down": sum(sum(row["bytes_down"].values()) for row in rows),
        "bytes-up": sum(sum(row["bytes_up"].values()) for row in rows),
        "times-chosen": _times(rows, "chosen"),
        "times-delivered": _times(rows, "delivered"),
        "data": inputs.title,
        "notes": list(inputs.notes),
        "server-device": server_device,
        "versions": {name: installed_version(name) for name in _PACKAGES},
    }


def _times(rows: list[dict[str, Any]], key: str) -> dict[str, int]:
    times = Counter(client for row in rows for client in row[key])
    return dict(sorted(times.items(), key=lambda item: (len(item[0]), item[0])))
