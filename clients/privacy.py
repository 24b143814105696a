"""Noise on a summary: what a sketch tells of its client is bounded before it leaves."""

import secrets
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from pncs_flower.randomness import generator

__all__ = ["SketchNoise"]


@dataclass(frozen=True)
class SketchNoise:
    """Clip a summary and add Gaussian noise to it (local differential privacy).

    All sketches of a summary together are scaled down to an L2 norm of at most ``clip_norm``; then
    each number gets noise of standard deviation ``noise_multiplier * 2 * clip_norm``. Two summaries
    of one client differ by at most 2 ``clip_norm``, whatever its data, so one summary is
    (ε, δ)-private with respect to the replacement of all of the client's data; see `epsilon`.

    This covers the summary alone. The full update of a chosen client leaves as it is, unless the
    app clips and noises it too (Flower's ``LocalDpMod``, behind `summary_mod`).

    Attributes
    ----------
    clip_norm : float
        Largest L2 norm of a summary, above 0.
    noise_multiplier : float
        Standard deviation of the noise over the largest difference of two summaries, above 0.
    secret : int, optional
        Seed of the noise, for tests and simulations. None takes the system's randomness: noise
        that a server could work out from the seed of the run would protect nobody.
    """

    clip_norm: float
    noise_multiplier: float
    secret: int | None = None

    def __post_init__(self) -> None:
        for name in ("clip_norm", "noise_multiplier"):
            value = getattr(self, name)
            if not 0 < value < float("inf"):
                raise ValueError(f"{name} is {value}, but must be a finite number above 0")

    @cached_property
    def standard_deviation(self) -> float:
        """Standard deviation of the noise on each number of a summary."""
        return self.noise_multiplier * 2 * self.clip_norm

    def epsilon(self, delta: float, rounds: int = 1) -> float:
        """Return the ε of so many summaries, by Google's accountant (dp-accounting).

        Parameters
        ----------
        delta : float
            The δ, above 0 and below 1.
        rounds : int (default: 1)
            Summaries that the client sends, one a round.

        Raises
        ------
        ModuleNotFoundError
            If dp-accounting is not installed: ``pip install "pncs-flower[privacy]"``.
        """
        try:
            from dp_accounting import GaussianDpEvent
            from dp_accounting.pld import PLDAccountant
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                'the accountant is not installed: pip install "pncs-flower[privacy]"'
            ) from error
        accountant = PLDAccountant()
        accountant.compose(GaussianDpEvent(self.noise_multiplier), rounds)
        return float(accountant.get_epsilon(delta))

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
        """
        other = next((s.dtype for s in sketches.values() if s.dtype != np.float32), None)
        if other is not None:
            raise ValueError(
                f"noise needs sketches in float32, but they are in {other}: leave the wire format "
                "out of the sketch's name"
            )
        norm = float(
            np.sqrt(sum(float((s.astype(np.float64) ** 2).sum()) for s in sketches.values()))
        )
        scale = min(1.0, self.clip_norm / norm) if norm > 0 else 1.0
        secret = secrets.randbits(62) if self.secret is None else self.secret
        noise = generator(secret, "sketch noise", round, client)
        return {
            layer: (
                sketch * scale + noise.normal(scale=self.standard_deviation, size=sketch.shape)
            ).astype(np.float32)
            for layer, sketch in sketches.items()
        }
