"""Keeps Flower's log to errors for a while, and leaves it as it was."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["errors_only"]


@contextmanager
def errors_only() -> Iterator[None]:
    """Log nothing of Flower's but errors, until the end of the block."""
    logger = logging.getLogger("flwr")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
