"""What server and clients agree on: the names in their messages, and what a client is asked for.

A message of the library is an ordinary training message with one more config record, `MARKER`. Its
``"phase"`` says what it is for:

``introduce``
    Who are you? The client answers with its key; its app is not called.
``summarize``
    Send a small summary of your gradient or of your local update (`SummaryRequest`).
``train``
    You are chosen: send your update. One kept from this round's pre-round is sent as it is.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

__all__ = [
    "INTRODUCE",
    "MARKER",
    "SUMMARIZE",
    "SUMMARY",
    "TRAIN",
    "Phase",
    "SummaryKind",
    "SummaryRequest",
    "client_order",
]

MARKER = "pncs"
"""Name of the config record that marks a message, and of the one that answers it."""

SUMMARY = "pncs-summary"
"""Name of the array record that holds a summary: one sketch per layer."""

INTRODUCE: Literal["introduce"] = "introduce"
SUMMARIZE: Literal["summarize"] = "summarize"
TRAIN: Literal["train"] = "train"

Phase = Literal["introduce", "summarize", "train"]
SummaryKind = Literal["gradient", "update"]


@dataclass(frozen=True)
class SummaryRequest:
    """What each candidate is asked for in the pre-round.

    Attributes
    ----------
    kind : {"update", "gradient"}
        Summarise the local update (weights before minus weights after local training; the client
        keeps it and sends it if chosen), or the gradient at the current weights.
    sketch : str
        The sketch, as `pncs_flower.sketches.parse_sketch` reads it.
    layers : tuple of str, optional
        The layers to summarise; all if None.
    """

    kind: SummaryKind = "update"
    sketch: str = "layers"
    layers: tuple[str, ...] | None = None

    def to_config(self) -> dict[str, str | list[str]]:
        """Return the request as the values of a config record."""
        config: dict[str, str | list[str]] = {"kind": self.kind, "sketch": self.sketch}
        if self.layers is not None:
            config["layers"] = list(self.layers)
        return config

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "SummaryRequest":
        """Read what `to_config` wrote."""
        layers = config.get("layers")
        return cls(
            kind=config["kind"],
            sketch=config["sketch"],
            layers=None if layers is None else tuple(layers),
        )


def client_order(key: str) -> tuple[int, int, str]:
    """Sort key for client keys: numbers first, by value, then names."""
    return (0, int(key), key) if key.isascii() and key.isdigit() else (1, 0, key)
