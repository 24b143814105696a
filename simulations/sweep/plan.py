"""What a report on a sweep is to show, and which of the paper's claims it is to judge."""

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY
from typing import Annotated, Literal

import numpy as np
from pydantic import ConfigDict, Field, StrictStr
from pydantic.dataclasses import dataclass

from ..validation import Count, Share, Text
from .statistics import Run, mean_interval, percent, rounds_to_reach

__all__ = ["CHECKED", "Claim", "Report"]

CHECKED = ConfigDict(extra="forbid")

Lines = Mapping[str, Sequence[Run]]
"""Those that a claim is of, the reference first."""

Outcome = tuple[bool, str]
"""Whether a claim holds in a panel, and the numbers that say so."""


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
    """It has the highest converged accuracy."""

    kind: Literal["best"]

    def judge(self, lines: Lines) -> Outcome:
        """Compare converged accuracies."""
        values = _converged(lines)
        own, *others = values.values()
        return own > max(others), _shown(values)


@dataclass(frozen=True, config=CHECKED)
class Similar(_Claim):
    """All have converged accuracies within so much of each other."""

    kind: Literal["similar"]
    within: Share

    def judge(self, lines: Lines) -> Outcome:
        """Compare the spread of the converged accuracies."""
        values = _converged(lines)
        spread = max(values.values()) - min(values.values())
        return spread <= self.within, f"{_shown(values)} (spread {spread:.3f})"


@dataclass(frozen=True, config=CHECKED)
class Sooner(_Claim):
    """It reaches an accuracy in the median by a round, the others after another one."""

    kind: Literal["sooner"]
    target: Share
    by: Count
    after: Count

    def judge(self, lines: Lines) -> Outcome:
        """Compare the median rounds that reach the target."""
        medians = {line: rounds_to_reach(runs, self.target)[0] for line, runs in lines.items()}
        own, *others = medians.values()
        late = all(median is None or median > self.after for median in others)
        shown = (f"{line} {'never' if m is None else f'{m:g}'}" for line, m in medians.items())
        text = f"median round that reaches {percent(self.target)}: {', '.join(shown)}"
        return own is not None and own <= self.by and late, text


@dataclass(frozen=True, config=CHECKED)
class Ahead(_Claim):
    """It is above all others in every round from one on."""

    kind: Literal["ahead"]
    start: Count = Field(alias="from")

    def judge(self, lines: Lines) -> Outcome:
        """Compare the mean accuracies round by round."""
        own, *others = (
            mean_interval(np.stack([run.accuracy for run in runs]))[0] for runs in lines.values()
        )
        behind = np.flatnonzero(own <= np.max(others, axis=0)) + 1
        behind = behind[behind >= self.start]
        if not behind.size:
            return True, "in every one of these rounds"
        return False, f"behind the best of the others in rounds {', '.join(map(str, behind))}"


Claim = Annotated[Best | Similar | Sooner | Ahead, Field(discriminator="kind")]


@dataclass(frozen=True, config=CHECKED)
class Report:
    """What a report shows; the reference is the sweep's first line if it is empty."""

    reference: StrictStr = ""
    rounds: tuple[Count, ...] = ()
    targets: tuple[Share, ...] = (0.4, 0.5, 0.6)
    claims: tuple[Claim, ...] = ()


def _converged(lines: Lines) -> dict[str, float]:
    return {line: sum(r.converged for r in runs) / len(runs) for line, runs in lines.items()}


def _shown(values: Mapping[str, float]) -> str:
    return ", ".join(f"{line} {value:.3f}" for line, value in values.items())
