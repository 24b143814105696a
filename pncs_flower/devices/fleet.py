"""The devices of all clients: drawn from distributions, or listed one by one."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from hashlib import blake2b
from pathlib import Path

from pncs_flower.plain_text import first_of
from pncs_flower.protocol import client_order
from pncs_flower.randomness import generator

from .availability import DAY, Always, Availability, Periods
from .device import Device
from .distributions import Distribution, LogNormal, drawn
from .numbers import check_number, check_probability
from .trace_file import read_devices

_NAMED = 5  # clients in an error
_SHORT = 200  # characters of what was given, in an error


class Fleet(ABC):
    """Which device each client has."""

    @abstractmethod
    def device(self, client: str, seed: int = 0) -> Device:
        """Return a client's device, the same whenever it is asked for; ValueError if none."""


@dataclass(frozen=True)
class Nights:
    """When a phone is plugged in, each day anew: from an hour of the evening on, for some hours.

    Parameters
    ----------
    start : float (default: 22.0)
        The hour of the day around which it begins.
    spread : float (default: 5.0)
        Standard deviation of that hour between phones, in hours (normal, around the clock).
    shortest, longest : float (default: 4.0 and 12.0)
        For how many hours; any number between is as likely as any other.
    """

    start: float = 22.0
    spread: float = 5.0
    shortest: float = 4.0
    longest: float = 12.0

    def __post_init__(self) -> None:
        check_number("start", self.start)
        check_number("spread", self.spread)
        check_number("shortest", self.shortest, above=True)
        check_number("longest", self.longest, least=self.shortest)
        if self.longest >= 24:
            raise ValueError(f"longest is {self.longest}, but must be below 24 hours")

    def of(self, client: str, seed: int) -> Periods:
        """Return a client's daily rhythm."""
        rng = generator(seed, "devices", "nights", client)
        start = (self.start + self.spread * rng.standard_normal()) % 24 * 3600
        on = rng.uniform(self.shortest, self.longest) * 3600
        return Periods(float(on), float(DAY - on), float(start))


@dataclass(frozen=True)
class DrawnDevices(Fleet):
    """Devices drawn from the seed and the client's key, each quantity for itself.

    Parameters
    ----------
    examples_per_second, download, upload, latency : float or Distribution
        As in `Device`; a plain number is that of all clients.
    availability : Availability or Nights (default: always)
        When they are there; `Nights` draws a daily rhythm for each.
    dropout : float (default: 0.0)
        Probability with which a device breaks off, each time that it is asked to do something.
    """

    examples_per_second: float | Distribution
    download: float | Distribution
    upload: float | Distribution
    latency: float | Distribution = 0.0
    availability: Availability | Nights = field(default_factory=Always)
    dropout: float = 0.0

    def __post_init__(self) -> None:
        for each in fields(self)[:4]:
            value = getattr(self, each.name)
            if not isinstance(value, Distribution):
                check_number(each.name, value, above=each.name != "latency")
        check_probability("dropout", self.dropout)
        if not isinstance(self.availability, Availability | Nights):
            raise TypeError(
                f"availability is {self.availability!r}, but must be an Availability, or Nights"
            )

    def device(self, client: str, seed: int = 0) -> Device:
        """Draw a client's device."""
        there = self.availability
        return Device(
            drawn(self.examples_per_second, seed, "examples per second", client),
            drawn(self.download, seed, "download", client),
            drawn(self.upload, seed, "upload", client),
            drawn(self.latency, seed, "latency", client),
            there.of(client, seed) if isinstance(there, Nights) else there,
            self.dropout,
        )


@dataclass(frozen=True)
class ListedDevices(Fleet):
    """Devices given for each client by its key.

    Parameters
    ----------
    devices : mapping of str to Device
        The device of each client.
    source : str (default: "a list")
        Where it is from, for an error.
    """

    devices: Mapping[str, Device] = field(repr=False)
    source: str = "a list"
    check: str = field(init=False)  # stands for the devices in what a checkpoint compares

    def __post_init__(self) -> None:
        if not self.devices:
            raise ValueError("devices is empty: name a device for each client")
        for client, device in self.devices.items():
            if not isinstance(client, str) or not isinstance(device, Device):
                raise TypeError(
                    f"devices has {client!r}: {device!r}, but must have text, a client's key, and "
                    "a Device"
                )
        own = sorted(self.devices.items(), key=lambda item: client_order(item[0]))
        digest = blake2b(repr(own).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
        object.__setattr__(self, "check", digest)

    def device(self, client: str, seed: int = 0) -> Device:
        """Return a client's device."""
        if client not in self.devices:
            known = sorted(self.devices, key=client_order)
            raise ValueError(
                f"client {client!r} is not among the devices of {self.source}, which has "
                f"{first_of(known, _NAMED)}: add it, or leave it out with eligible="
            )
        return self.devices[client]


PRESETS: dict[str, Fleet] = {
    "phones": DrawnDevices(
        examples_per_second=LogNormal(100.0, 0.8),
        download=LogNormal(6e6, 0.8),
        upload=LogNormal(2e6, 0.8),
        latency=LogNormal(0.1, 0.5),
        availability=Nights(),
        dropout=0.08,
    ),
    "cross-silo": DrawnDevices(
        examples_per_second=LogNormal(5000.0, 0.3),
        download=LogNormal(100e6, 0.3),
        upload=LogNormal(100e6, 0.3),
        latency=0.03,
    ),
    "uniform": DrawnDevices(examples_per_second=100.0, download=6e6, upload=2e6, latency=0.1),
}
"""Fleets by name.

``phones``
    The medians of the rates, 0.75 MB/s down and 0.25 MB/s up, are round figures after the model of
    a round's time in Wang et al. (A Field Guide to Federated Optimization, arXiv:2107.06917).
    Bonawitz et al. (Towards Federated Learning at Scale, arXiv:1902.01046) have 6% to 10% of
    devices drop out on average (here 8%), and four times as many devices that take part at the peak
    of the day as in its trough (here 4.4 times that are there). That a device is there while it is
    plugged in is theirs, too, and that of FedScale's traces (arXiv:2105.11367).
``cross-silo``
    A few servers that are always there, on links of about 100 Mbit/s.
``uniform``
    The medians of ``phones`` for every client, always there: what remains of time where devices do
    not differ.

Ours alone are the shape and the spread of the distributions, their independence, the latencies, the
speeds (which depend on the model: a small one here) and all of ``cross-silo``.
"""


def as_fleet(devices: "str | Path | Fleet | Mapping[str, Device]") -> Fleet:
    """Return the fleet that a preset's name, a file's path, a mapping or a fleet stands for.

    Raises
    ------
    TypeError, ValueError
        If it stands for none, or the file has a line that cannot be.
    """
    if isinstance(devices, Fleet):
        return devices
    if isinstance(devices, Mapping):
        return ListedDevices(dict(devices))
    if not isinstance(devices, str | Path):
        raise TypeError(
            f"devices is {devices!r}, but must be {', '.join(map(repr, PRESETS))}, the path of a "
            "file, a mapping of clients to Device, or a Fleet"
        )
    if str(devices) in PRESETS:
        return PRESETS[str(devices)]
    path = Path(devices)
    if path.suffix.lower() in (".csv", ".json"):
        return ListedDevices(read_devices(path), path.name)
    near = get_close_matches(str(devices), PRESETS, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    raise ValueError(
        f"devices is {str(devices)[:_SHORT]!r}, but must be one of {', '.join(PRESETS)}, or a "
        f".csv or .json file{hint}"
    )
