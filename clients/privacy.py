"""Noise on a summary: what a sketch tells of its client is bounded before it leaves."""

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from pncs_flower.protocol import SummaryRequest
from pncs_flower.randomness import generator
from pncs_flower.sketches.kinds import parse_sketch
from pncs_flower.sketches.power_moments import PowerMoments

_BLOCK = 1 << 20  # numbers of noise drawn at a time, which bounds the memory that it takes
_MOST_DEVIATIONS = 10  # more than noise from 53 random bits can have


@dataclass(frozen=True)
class SketchNoise:
    """Clip a summary and add Gaussian noise to it (local differential privacy).

    All sketches of a summary, also one of the whole update beside those of layers, are scaled down
    together to an L2 norm of at most ``clip_norm``; then each number gets noise of standard
    deviation ``noise_multiplier * 2 * clip_norm``. Two summaries of one client differ by at most 2
    ``clip_norm``, whatever its data, so one summary is (ε, δ)-private with respect to the
    replacement of all of the client's data; see `epsilon`.

    What cannot be clipped (a loss, power moments, a value that is not finite) is an error on the
    client, and nothing of it leaves. The full update of a chosen client leaves as it is, unless the
    app clips and noises it too (Flower's ``LocalDpMod``, behind `summary_mod`).

    Each pair of numbers is made of 128 bits of `os.urandom` (Box-Muller, in float64). The (ε, δ)
    are those of exact real numbers; noise in floating point takes not every real value, which an
    attacker of last bits may use.

    Attributes
    ----------
    clip_norm : float
        Largest L2 norm of a summary, above 0.
    noise_multiplier : float
        Standard deviation of the noise over the largest difference of two summaries, above 0.
    secret : int, optional
        Seed of the noise, for tests and simulations: whoever knows it can work out all noise, and
        so perhaps can who sees much of it (NumPy's PCG64). None takes the system's randomness.
    """

    clip_norm: float
    noise_multiplier: float
    secret: int | None = None

    def __post_init__(self) -> None:
        for name in ("clip_norm", "noise_multiplier"):
            value = getattr(self, name)
            is_number = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
            if not (is_number and 0 < value < math.inf):
                raise ValueError(f"{name} is {value!r}, but must be a finite number above 0")
        most = float(np.finfo(np.float32).max) / (2 * _MOST_DEVIATIONS)
        if not 0 < self.standard_deviation <= most or self.clip_norm > most:
            raise ValueError(
                f"clip_norm is {self.clip_norm} and noise_multiplier is {self.noise_multiplier}: "
                f"the clip norm and the noise's standard deviation, {self.standard_deviation}, "
                f"must be above 0 and at most {most:.2g}, so that a summary fits into float32"
            )

    @property
    def standard_deviation(self) -> float:
        """Standard deviation of the noise on each number of a summary."""
        return self.noise_multiplier * 2 * self.clip_norm

    def epsilon(self, delta: float, rounds: int = 1) -> float:
        """Return the ε of so many summaries, one a round, by Google's accounting (dp-accounting).

        It needs ``pip install "pncs-flower[privacy]"``, else it raises ModuleNotFoundError.
        """
        if not 0 < delta < 1:
            raise ValueError(f"delta is {delta}, but must be above 0 and below 1")
        if rounds < 1:
            raise ValueError(f"rounds is {rounds}, but must be at least 1")
        try:
            from dp_accounting import get_epsilon_gaussian
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                'the accountant is not installed: pip install "pncs-flower[privacy]"'
            ) from error
        # So many Gaussian releases are one with the noise divided by the root of their number.
        return float(get_epsilon_gaussian(self.noise_multiplier / math.sqrt(rounds), delta))

    def describe(self, delta: float = 1e-5) -> str:
        """Return one line with the standard deviation and the (ε, δ) of one round."""
        try:
            spent = f"each round spends (ε, δ) = ({self.epsilon(delta):.3g}, {delta:g})"
        except ModuleNotFoundError as error:
            spent = f"what each round spends is not known: {error}"
        return (
            f"Sketch noise: clipped to {self.clip_norm:g}, standard deviation "
            f"{self.standard_deviation:g} on each number; {spent}"
        )

    def check_request(self, request: SummaryRequest) -> None:
        """Raise ValueError, with the remedy, for a request whose answer clipping cannot bound."""
        if request.kind == "loss":
            raise ValueError(
                "the strategy asks for the loss, but this client sends nothing without noise, "
                "and its noise is for sketches: use a rule that asks for sketches or for "
                "nothing, or leave noise= out"
            )
        # All other sketches of a vector that is scaled down are scaled down too.
        for part in request.parts.values():
            if isinstance(parse_sketch(part.sketch), PowerMoments):
                raise ValueError(
                    f"the sketch {part.sketch!r} cannot be clipped, and so has no noise: give the "
                    "strategy another, such as sketch='coordinates:2%'"
                )

    def apply(
        self, summary: Mapping[str, Mapping[str, np.ndarray]], round: int, client: str
    ) -> dict[str, dict[str, np.ndarray]]:
        """Return a summary, float32 sketches by record and layer, clipped and with noise."""
        pieces = [piece for sketches in summary.values() for piece in sketches.items()]
        for layer, sketch in pieces:
            if sketch.dtype != np.float32:  # a value has to get its noise before it is rounded
                raise ValueError(
                    f"noise needs sketches in float32, but they are in {sketch.dtype}: give the "
                    "strategy a sketch without a wire format, such as sketch='coordinates:2%'"
                )
            # An infinite norm would scale to zeros or NaN, and a norm of NaN to nothing at all.
            if not np.isfinite(sketch).all():
                raise ValueError(
                    f"the summary of layer {layer!r} holds a value that is not finite, so it "
                    "cannot be clipped, and nothing of it is sent: has the training diverged?"
                )
        # In float64 the square of no float32 overflows or vanishes.
        squares = [float(np.square(s, dtype=np.float64).sum()) for _, s in pieces]
        norm = math.sqrt(sum(squares))
        scale = min(1.0, self.clip_norm / norm) if norm > 0 else 1.0
        draw = _system_normal
        if self.secret is not None:
            draw = generator(self.secret, "sketch noise", round, client).standard_normal
        return {
            record: {name: self._with_noise(sketch, scale, draw) for name, sketch in part.items()}
            for record, part in summary.items()
        }

    def _with_noise(
        self, sketch: np.ndarray, scale: float, draw: Callable[[int], np.ndarray]
    ) -> np.ndarray:
        flat = sketch.ravel()
        noisy = np.empty_like(flat)
        for start in range(0, flat.size, _BLOCK):
            block = flat[start : start + _BLOCK].astype(np.float64)
            noise = self.standard_deviation * draw(block.size)
            noisy[start : start + _BLOCK] = block * scale + noise
        return noisy.reshape(sketch.shape)


def _system_normal(size: int) -> np.ndarray:
    """Return normal numbers made of the operating system's random bits (Box-Muller)."""
    pairs = -(-size // 2)
    words = np.frombuffer(os.urandom(16 * pairs), np.uint64) >> 11
    radius = np.sqrt(-2 * np.log((words[:pairs] + 1) * 2.0**-53))  # of a number above 0, up to 1
    angle = words[pairs:] * (2 * np.pi * 2.0**-53)
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:size]
