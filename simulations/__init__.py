"""A Flower app that trains with diverse client selection: `flwr run simulations`."""

from .run.in_process import InProcessGrid

__all__ = ["InProcessGrid"]
