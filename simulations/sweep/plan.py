"""What a report on a sweep is to show, and which of the paper's claims it is to judge."""

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY
from typing import Annotated, Literal

import numpy as np
from pydantic import ConfigDict, Field, StrictStr
from pydantic.dataclasses import dataclass

from ..validation import Count, Share, Text
from .statistics import Run, mean_interval, percent, rounds_to_reach

__all__ = ["CHECKED", "Claim", "Report", "judge_lines"]

CHECKED = ConfigDict(extra="forbid")

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


@dataclass(frozen=True, config=CHECKED)
class Similar(_Claim):
    """All have converged accuracies within so much of each other."""

    kind: Literal["similar"]
    within: Share


@dataclass(frozen=True, config=CHECKED)
class Sooner(_Claim):
    """It reaches an accuracy in the median by a round, the others after another one."""

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


def judge_lines(claim: Claim, lines: Mapping[str, Sequence[Run]]) -> Outcome:
    """Hold a claim against the runs of one panel, those of the reference first."""
    if isinstance(claim, Sooner):
        medians = {line: rounds_to_reach(runs, claim.target)[0] for line, runs in lines.items()}
        first, *others = medians.values()
        late = all(median is None or median > claim.after for median in others)
        shown = (f"{line} {'never' if m is None else f'{m:g}'}" for line, m in medians.items())
        text = f"median round that reaches {percent(claim.target)}: {', '.join(shown)}"
        return first is not None and first <= claim.by and late, text
    if isinstance(claim, Ahead):
        own, *rest = (mean_interval(np.stack([r.accuracy for r in s]))[0] for s in lines.values())
        behind = np.flatnonzero(own <= np.max(rest, axis=0)) + 1
        behind = behind[behind >= claim.start]
        if not behind.size:
            return True, "in every one of these rounds"
        return False, f"behind the best of the others in rounds {', '.join(map(str, behind))}"
    means = {line: sum(r.converged for r in runs) / len(runs) for line, runs in lines.items()}
    values = list(means.values())
    text = ", ".join(f"{line} {value:.3f}" for line, value in means.items())
    if isinstance(claim, Best):
        return values[0] > max(values[1:]), text
    spread = max(values) - min(values)
    return spread <= claim.within, f"{text} (spread {spread:.3f})"
