"""Noise on a summary: what a sketch tells of its client is bounded before it leaves."""

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from pncs_flower.randomness import generator
from pncs_flower.sketches import PowerMoments, Sketch

__all__ = ["SketchNoise"]

# Numbers of noise drawn at a time, which bounds the memory that it takes.
_BLOCK = 1 << 20
# More standard deviations than noise from 53 random bits can have.
_MOST_DEVIATIONS = 10
_FLOAT32_MAX = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class SketchNoise:
    """Clip a summary and add Gaussian noise to it (local differential privacy).

    All sketches of a summary together are scaled down to an L2 norm of at most ``clip_norm``; then
    each number gets noise of standard deviation ``noise_multiplier * 2 * clip_norm``. Two summaries
    of one client differ by at most 2 ``clip_norm``, whatever its data, so one summary is
    (ε, δ)-private with respect to the replacement of all of the client's data; see `epsilon`.

    A summary that is not finite cannot be clipped, so it is an error on the client, and nothing of
    it leaves. So is a request for the loss, which is no sketch and would leave without noise.

    This covers the summary alone. The full update of a chosen client leaves as it is, unless the
    app clips and noises it too (Flower's ``LocalDpMod``, behind `summary_mod`).

    The noise of each pair of numbers is made of 128 random bits of the operating system
    (`os.urandom`, a cryptographic generator) by the Box-Muller transform in float64, and rounded
    to float32 with the numbers. The (ε, δ) are those of exact real numbers: like all noise in
    floating point, this takes not every real value, which an attacker of last bits may use.

    Attributes
    ----------
    clip_norm : float
        Largest L2 norm of a summary, above 0.
    noise_multiplier : float
        Standard deviation of the noise over the largest difference of two summaries, above 0.
    secret : int, optional
        Seed of the noise, for tests and simulations: the generator is then NumPy's PCG64, of which
        all noise can be worked out by who knows the seed, and perhaps by who sees much of it. None
        takes the system's randomness.

    Raises
    ------
    ValueError
        If the clip norm or the multiplier is not finite and above 0, or so are not the standard
        deviation and the largest noise in float32.
    """

    clip_norm: float
    noise_multiplier: float
    secret: int | None = None

    def __post_init__(self) -> None:
        for name in ("clip_norm", "noise_multiplier"):
            value = getattr(self, name)
            if isinstance(value, bool) or not (
                isinstance(value, (int, float, np.number)) and 0 < value < math.inf
            ):
                raise ValueError(f"{name} is {value!r}, but must be a finite number above 0")
        most = _FLOAT32_MAX / (2 * _MOST_DEVIATIONS)
        if not 0 < self.standard_deviation <= most or self.clip_norm > most:
            raise ValueError(
                f"clip_norm is {self.clip_norm} and noise_multiplier is {self.noise_multiplier}: "
                f"the clip norm and the noise's standard deviation, {self.standard_deviation}, "
                f"must be above 0 and at most {most:.2g}, so that a summary fits into float32"
            )

    @cached_property
    def standard_deviation(self) -> float:
        """Standard deviation of the noise on each number of a summary."""
        return self.noise_multiplier * 2 * self.clip_norm

    def epsilon(self, delta: float, rounds: int = 1) -> float:
        """Return the ε of so many summaries, by Google's accounting (dp-accounting).

        So many Gaussian releases are one with the noise divided by the root of their number.

        Parameters
        ----------
        delta : float
            The δ, above 0 and below 1.
        rounds : int (default: 1)
            Summaries that the client sends, one a round.

        Raises
        ------
        ValueError
            If ``delta`` or ``rounds`` is out of range.
        ModuleNotFoundError
            If dp-accounting is not installed: ``pip install "pncs-flower[privacy]"``.
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

    def check_sketch(self, sketch: Sketch) -> None:
        """Raise ValueError, with the remedy, for a sketch that clipping would change in kind.

        Other sketches of a vector that is scaled down are scaled down too. Power moments are not:
        their parts are the moments of the vector without its norm, and the norm.
        """
        if isinstance(sketch, PowerMoments):
            raise ValueError(
                f"the sketch {sketch.spec!r} cannot be clipped, and so has no noise: give the "
                "strategy another, such as sketch='coordinates:2%'"
            )

    def apply(
        self, sketches: dict[str, np.ndarray], round: int, client: str
    ) -> dict[str, np.ndarray]:
        """Return the sketches of a summary, clipped and with noise.

        Parameters
        ----------
        sketches : dict of str to np.ndarray
            Float32 sketch of each layer, of any length.
        round : int
            The round.
        client : str
            The client's key.

        Raises
        ------
        ValueError
            If a sketch is in another wire format: noise has to be added before a value is rounded.
            Or if a value is not finite, as it cannot be clipped then.
        """
        for layer, sketch in sketches.items():
            if sketch.dtype != np.float32:
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
        norm = math.sqrt(
            sum(float(np.square(s, dtype=np.float64).sum()) for s in sketches.values())
        )
        scale = min(1.0, self.clip_norm / norm) if norm > 0 else 1.0
        draw = _system_normal
        if self.secret is not None:
            draw = generator(self.secret, "sketch noise", round, client).standard_normal
        return {layer: self._with_noise(sketch, scale, draw) for layer, sketch in sketches.items()}

    def _with_noise(
        self, sketch: np.ndarray, scale: float, draw: Callable[[int], np.ndarray]
    ) -> np.ndarray:
        flat = sketch.ravel()
        noisy = np.empty_like(flat)
        for start in range(0, flat.size, _BLOCK):
            block = flat[start : start + _BLOCK].astype(np.float64)
            noisy[start : start + _BLOCK] = block * scale + self.standard_deviation * draw(
                block.size
            )
        if not np.isfinite(noisy).all():
            raise ValueError("the noise made a value that is not finite: lower clip_norm")
        return noisy.reshape(sketch.shape)


def _system_normal(size: int) -> np.ndarray:
    """Return normal numbers made of the operating system's random bits (Box-Muller)."""
    pairs = -(-size // 2)
    words = np.frombuffer(os.urandom(16 * pairs), np.uint64) >> 11
    radius = np.sqrt(-2 * np.log((words[:pairs] + 1) * 2.0**-53))  # of a number above 0, up to 1
    angle = words[pairs:] * (2 * np.pi * 2.0**-53)
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:size]
