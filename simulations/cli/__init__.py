"""The command `pncs`."""

from .run import app, main

__all__ = ["app", "main"]
