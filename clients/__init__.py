"""The client side: one mod for any ClientApp, and a reference PyTorch client (`.pytorch`)."""

from .privacy import SketchNoise
from .summary import GradientFunction, SummaryMod, client_key, summary_mod

__all__ = ["GradientFunction", "SketchNoise", "SummaryMod", "client_key", "summary_mod"]
