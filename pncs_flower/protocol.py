"""What server and clients agree on: the names in their messages, and what a client is asked for.

A message of the library is an ordinary training message with one more config record, `MARKER`. Its
``"phase"`` says what it is for:

``introduce``
    Who are you? The client answers with its key, or with its `PROBLEM`; its app is not called. (To
    a question with `EPOCHS`, for a simulated clock, it also says how often it goes through its
    examples.) So any other answer, an error too, means that the mod is not there, or that another
    one in front of it has failed on the message.
``summarize``
    Send a small summary of your gradient or of your local update (`SummaryRequest`): the array
    record `SUMMARY`, and `WHOLE` beside it where it is asked for. To a client whose introduction
    has `JOINT`, an evaluation may come in the same message (`pncs_flower.messages.joint`), which is
    done first; of either that fails, the answer's marker has the reason, under its name.
``train``
    You are chosen: send your update. One kept from the pre-round that the message names by its
    `TICKET` is sent as it is; one kept from any other, of another message, is not. To a client that
    must have one, the message comes without the weights and with `KEPT`; if the client has lost
    it, it answers `LOST`, and gets the whole message.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal, get_args

MARKER = "pncs"  # the config record that marks a message, and the one that answers it
SUMMARY = "pncs-summary"  # the array record: one sketch per layer, or LOSS and NUM_EXAMPLES
WHOLE = "pncs-whole"  # the array record beside it: a sketch of the whole update
KEPT = "kept"  # entry of the marker: the client should have its update
TICKET = "ticket"  # entry of the marker that names one pre-round, of this run alone
LOST = "lost"  # entry of the marker with which a client says that it does not have it
JOINT = "joint"  # entry of the introduction: the client takes two messages in one
TAG = "tag/"  # what entries of the introduction begin with that the client says for who chooses
PROBLEM = "problem"  # entry of the marker: why a client cannot introduce itself
EPOCHS = "epochs"  # entry of the introduction: how often a training goes through the examples
MOST_EPOCHS = 1e6  # that may be said
LOSS = "loss"  # the mean loss over a client's examples
NUM_EXAMPLES = "num-examples"  # in summaries and in metrics
# A metric: how many examples a client has gone through, each as often as it has, for a simulated
# clock; only where that is not what it has said to have, times its epochs.
EXAMPLES_PROCESSED = "examples-processed"
MAX_EXAMPLES = "pncs-max-examples"  # in an evaluation's config: how many examples are enough

INTRODUCE: Literal["introduce"] = "introduce"
SUMMARIZE: Literal["summarize"] = "summarize"
TRAIN: Literal["train"] = "train"

Phase = Literal["introduce", "summarize", "train"]
SummaryKind = Literal["gradient", "loss", "update"]


@dataclass(frozen=True)
class SummaryRequest:
    """What each candidate is asked for in the pre-round.

    Parameters
    ----------
    kind : {"update", "gradient", "loss"} (default: "update")
        Summarise the local update (weights before minus weights after training; the client keeps it
        and sends it if chosen) or the gradient at the current weights; or tell the loss there.
    sketch : str (default: "layers")
        What `pncs_flower.sketches.kinds.parse_sketch` reads. Not for a loss.
    layers : tuple of str, optional (default: None)
        The layers to summarise; all if None. Not for a loss.
    max_examples : int (default: 0)
        Evaluate the loss on this many examples at most, if the app reads `MAX_EXAMPLES`; 0 for all.
    whole : bool (default: False)
        Summarise the layers as one vector, named `pncs_flower.layers.ALL_LAYERS`. Not for a loss.
    besides : str (default: "")
        A second sketch to send in the same answer: of the local update in all layers, as one
        vector. For an update only.
    """

    kind: SummaryKind = "update"
    sketch: str = "layers"
    layers: tuple[str, ...] | None = None
    max_examples: int = 0
    whole: bool = False
    besides: str = ""

    def __post_init__(self) -> None:
        if self.kind not in get_args(SummaryKind):
            raise ValueError(
                f"a summary of kind {self.kind!r} is asked for, but there are "
                f"{', '.join(get_args(SummaryKind))}"
            )
        if self.besides and self.kind != "update":
            raise ValueError(
                f"the sketch {self.besides!r} of the whole update is asked for besides a summary "
                f"of kind {self.kind!r}, for which nobody trains: ask for one of kind 'update'"
            )
        if self.whole and self.kind == "loss":
            raise ValueError("whole is True, but a loss has no layers to take as one vector")

    @property
    def parts(self) -> dict[str, "SummaryRequest"]:
        """What each array record of an answer holds, as a request for nothing besides."""
        parts = {SUMMARY: replace(self, besides="")}
        if self.besides:
            parts[WHOLE] = SummaryRequest("update", self.besides, whole=True)
        return parts

    def to_config(self) -> dict[str, int | str | list[str]]:
        """Return the request as the values of a config record."""
        config: dict[str, int | str | list[str]] = {
            "kind": self.kind,
            "sketch": self.sketch,
            "max-examples": self.max_examples,
        }
        if self.layers is not None:
            config["layers"] = list(self.layers)
        if self.whole:
            config["whole"] = True
        if self.besides:
            config["besides"] = self.besides
        return config

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "SummaryRequest":
        """Read what `to_config` wrote, also that of a release without ``whole`` and ``besides``."""
        layers = config.get("layers")
        return cls(
            kind=config["kind"],
            sketch=config["sketch"],
            layers=None if layers is None else tuple(layers),
            max_examples=config["max-examples"],
            whole=config.get("whole", False),
            besides=config.get("besides", ""),
        )


@lru_cache(maxsize=1 << 16)  # a round sorts the same clients several times
def client_order(key: str) -> tuple[int, int, str]:
    """Sort key for client keys: numbers first, by value, then names."""
    return (0, int(key), key) if key.isascii() and key.isdigit() else (1, 0, key)
