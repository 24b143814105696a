"""What a report on a sweep is to show, and which of the paper's claims it is to judge."""

from dataclasses import KW_ONLY
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, StrictStr
from pydantic.dataclasses import dataclass

from ..validation import Count, Share, Text

CHECKED = ConfigDict(extra="forbid")


@dataclass(frozen=True, config=CHECKED)
class _Claim:
    """What the reference is said to be beside other lines; judged by the means over seeds."""

    _: KW_ONLY
    text: Text
    against: Annotated[tuple[StrictStr, ...], Field(min_length=1)]

    @property
    def last_round(self) -> int:
        """The last round that the claim speaks of by its number."""
        return max(getattr(self, name, 1) for name in ("by", "after", "start"))


@dataclass(frozen=True, config=CHECKED)
class Best(_Claim):
    """It has the highest converged score."""

    kind: Literal["best"]


@dataclass(frozen=True, config=CHECKED)
class Similar(_Claim):
    """All have converged scores within so much of each other."""

    kind: Literal["similar"]
    within: Share


@dataclass(frozen=True, config=CHECKED)
class Sooner(_Claim):
    """It reaches a score in the median by a round, the others after another one."""

    kind: Literal["sooner"]
    target: Share
    by: Count
    after: Count


@dataclass(frozen=True, config=CHECKED)
class Ahead(_Claim):
    """It is above all others in every round from one on."""

    kind: Literal["ahead"]
    start: Count = Field(alias="from")


Claim = Annotated[Best | Similar | Sooner | Ahead, Field(discriminator="kind")]


@dataclass(frozen=True, config=CHECKED)
class Report:
    """What a report shows; the reference is the sweep's first line if it is empty."""

    reference: StrictStr = ""
    rounds: tuple[Count, ...] = ()
    targets: tuple[Share, ...] = (0.4, 0.5, 0.6)
    claims: tuple[Claim, ...] = ()
