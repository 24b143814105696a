"""One device: how long it takes for what it is asked to do."""

from dataclasses import dataclass, field
from typing import NamedTuple

from .availability import Always, Availability
from .numbers import check_number, check_probability


class Span(NamedTuple):
    """When a device did what it was asked to, in seconds."""

    asked: float
    received: float  # the message is there: latency and download
    computed: float
    sent: float  # the reply is at the server

    def cut(self, seconds: float) -> "Span":
        """Return the span of a device that stops at a time."""
        return Span(*(min(each, seconds) for each in self))

    def after(self, seconds: float) -> "Span":
        """Return the span, so many seconds later."""
        return Span(*(each + seconds for each in self))


@dataclass(frozen=True)
class Device:
    """What a client runs on.

    Parameters
    ----------
    examples_per_second : float
        Examples that it trains on in a second, forwards and backwards, with the model at hand. An
        example that it only evaluates takes it a third of the time of one that it trains on.
    download, upload : float
        Bits per second that it receives and sends.
    latency : float (default: 0.0)
        Seconds from when a message is sent to it until its first bit is there, and that of the
        reply: once for each message that it answers.
    availability : Availability (default: always)
        When it is there.
    dropout : float (default: 0.0)
        Probability with which it breaks off in the middle of what it was asked to do, each time.
    """

    examples_per_second: float
    download: float
    upload: float
    latency: float = 0.0
    availability: Availability = field(default_factory=Always)
    dropout: float = 0.0

    def __post_init__(self) -> None:
        for name in ("examples_per_second", "download", "upload"):
            check_number(name, getattr(self, name), above=True)
        check_number("latency", self.latency)
        check_probability("dropout", self.dropout)
        if not isinstance(self.availability, Availability):
            raise TypeError(f"availability is {self.availability!r}, but must be an Availability")

    def span(self, asked: float, bytes_down: int, examples: float, bytes_up: int) -> Span:
        """Return when it receives a message, has computed, and its reply is there."""
        received = asked + self.latency + 8 * bytes_down / self.download
        computed = received + examples / self.examples_per_second
        return Span(asked, received, computed, computed + 8 * bytes_up / self.upload)
