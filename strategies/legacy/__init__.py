"""The bridge to servers of Flower's older interface, in a room that nothing else imports."""

from .selection import LegacySelection

__all__ = ["LegacySelection"]
