"""Simulated devices: how fast each client computes and sends, and when it is there."""

from .availability import Always, Availability, Chance, Periods, Trace, daily
from .device import Device, Span
from .distributions import Distribution, LogNormal, Uniform
from .fleet import PRESETS, DrawnDevices, Fleet, ListedDevices, Nights, as_fleet

__all__ = [
    "PRESETS",
    "Always",
    "Availability",
    "Chance",
    "Device",
    "Distribution",
    "DrawnDevices",
    "Fleet",
    "ListedDevices",
    "LogNormal",
    "Nights",
    "Periods",
    "Span",
    "Trace",
    "Uniform",
    "as_fleet",
    "daily",
]
