"""The metrics of replies: what must be there, and how replies that differ in them are made alike.

Flower's strategies refuse to aggregate replies with different metrics, and a mean of values that
are not finite says nothing. One client would end the run, or spoil what all others report. So its
weight and what else the base strategy lives on must be sound, and of all other metrics a client may
have what it likes: the base strategy is given those that most of them report.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from logging import WARNING
from typing import Any, Literal

import numpy as np
from flwr.app import ArrayRecord, MetricRecord, RecordDict
from flwr.common import log
from flwr.serverapp.strategy import Strategy

from pncs_flower.messages.records import of_kind
from pncs_flower.plain_text import first_of, shortened

from ..base_strategy import unwrap
from ..rule import Metrics

LEAST_WEIGHT = 1e-9
"""The least weight of a client: beside that of others it must not vanish."""
_NAMED = 5  # metrics in a note
_MOST = 1e20  # of a loss: QFedAvg weighs by powers of it, which must stay finite
_NORM_BIT = "norm_bit"  # what Flower's adaptive clipping on the client side reports
_REPORTS_NORMS = "DifferentialPrivacyClientSideAdaptiveClipping"
_NUMBER = "number"

# What a note says of metrics.
_FILLED = "the mean of the others stands in for metrics that are not there, or not a finite number"
_HOPELESS = "metrics that nobody has as a finite number are left out"
_RARE = "metrics that most do not report are left out"

Contents = Mapping[str, RecordDict]  # replies, by client
Form = str | int  # what is compared of a metric: the length of a list, or that it is a number
Metric = tuple[str, str, Form]  # the name of its record, its own, and its form


def numbers(content: RecordDict) -> Metrics:
    """Return all single numbers among a reply's metrics that are finite."""
    return {name: value for name, value in _singles(content).items() if math.isfinite(value)}


class ReplyMetrics:
    """What the metrics of replies must be, in training or evaluation, and what they were last."""

    def __init__(
        self, what: Literal["training", "evaluation"], base: Strategy, max_weight: float
    ) -> None:
        # Names of records, and the metrics that most had last. It breaks ties of a vote.
        self.layout: tuple[object, ...] = ()
        self._what = what
        self._max_weight = max_weight
        self._told: set[str] = set()
        self._bases = list(unwrap(base))
        self.weighted_by = next(iter(self._keys("weighted_by_key")), None)
        self._others: list[str] = []
        if what == "training":
            self._others = self._keys("train_loss_key")
            if any(type(base).__name__ == _REPORTS_NORMS for base in self._bases):
                self._others.append(_NORM_BIT)

    def _keys(self, attribute: str) -> list[str]:
        """Return the names of metrics that the base strategy, or one within it, has in a key."""
        keys = [getattr(base, attribute, None) for base in self._bases]
        return [key for key in keys if isinstance(key, str)]

    def check(self, content: RecordDict) -> None:
        """Raise ValueError if a reply cannot be used."""
        if self.weighted_by is None:
            return
        records = of_kind(content, MetricRecord)
        if len(records) != 1:  # Flower's strategies refuse any other number
            raise ValueError(f"{len(records)} metric records in place of one")
        metrics = _singles(content)
        weight = metrics.get(self.weighted_by)
        if weight is None:
            raise ValueError(f"its metrics lack {self.weighted_by!r}, by which replies are weighed")
        if not LEAST_WEIGHT <= weight <= self._max_weight:
            raise ValueError(
                f"{self.weighted_by} is {weight:g}, but must be above 0 ({LEAST_WEIGHT:g} at "
                f"least) and at most {self._max_weight:g}, the strategy's max_weight"
            )
        for name in self._others:
            if not 0 <= metrics.get(name, -1.0) <= _MOST:
                raise ValueError(
                    f"{name} is {metrics.get(name, 'absent')}, but the base strategy needs a "
                    f"number from 0 to {_MOST:g}"
                )

    def weights(self, contents: Contents) -> dict[str, float]:
        """Return the weight of each reply, 1 where the base strategy has none."""
        if self.weighted_by is None:
            return dict.fromkeys(contents, 1.0)
        return {client: _singles(content)[self.weighted_by] for client, content in contents.items()}

    def odd_weights(self, contents: Contents) -> dict[str, str]:
        """Return whose weight is not that of most, and why an account of privacy needs it so."""
        accounts = any(getattr(base, "accountant", None) is not None for base in self._bases)
        if not accounts or not contents:
            return {}
        weights = self.weights(contents)
        ((usual, count),) = Counter(weights.values()).most_common(1)
        if 2 * count <= len(weights):  # the app is at fault: the base strategy says so
            return {}
        return {
            client: f"{self.weighted_by} is {weight:g}, and that of others {usual:g}: the base "
            "strategy keeps an account of privacy, for which all must be equal"
            for client, weight in weights.items()
            if weight != usual
        }

    def unify(self, contents: Contents) -> list[str]:
        """Give all replies, in place, the metrics that most have; return notes on what changed."""
        if not contents:
            return []
        names = _rename(contents, self.layout)
        found = {client: _entries(content) for client, content in contents.items()}
        forms = [[(*key, _form(value)) for key, value in row.items()] for row in found.values()]
        usual = self._usual(forms)
        self.layout = (*names, *usual)
        values = (value for row in found.values() for value in row.values())
        if all(own == usual for own in forms) and all(map(_is_finite, values)):
            return []  # as nearly always, they are alike
        weights = np.array(list(self.weights(contents).values()))
        alike: dict[str, dict[str, Any]] = {
            client: {name: {} for name in of_kind(content, MetricRecord)}
            for client, content in contents.items()
        }
        told: dict[str, list[str]] = {_FILLED: [], _HOPELESS: [], _RARE: []}
        for record, name, form in usual:
            own = [entries.pop((record, name), None) for entries in found.values()]
            column = [value if _form(value) == form else None for value in own]
            full = _complete(column, form, weights)
            if full is None:
                told[_HOPELESS].append(f"{name!r}")
                continue
            for client, before, after in zip(contents, column, full, strict=True):
                alike[client].setdefault(record, {})[name] = after
                if after is not before:
                    told[_FILLED].append(f"{name!r} of {client}")
        told[_RARE] = [f"{name!r} of {c}" for c, entries in found.items() for _, name in entries]
        for client, content in contents.items():
            found_in = of_kind(content, MetricRecord)
            for name, values in alike[client].items():
                # Also in another order, it is another record.
                if name not in found_in or list(found_in[name].items()) != list(values.items()):
                    content[name] = MetricRecord(values)
        return self._told_once(told)

    def _usual(self, forms: Sequence[Sequence[Metric]]) -> list[Metric]:
        """Return the metrics that most report, each with the form that it has with most."""
        votes = Counter(chain.from_iterable(forms))
        return [
            metric
            for metric, count in votes.items()
            if 2 * count > len(forms) or (2 * count == len(forms) and metric in self.layout)
        ]

    def _told_once(self, cases: Mapping[str, Sequence[str]]) -> list[str]:
        """Return a note on each case that there is; the log has one of each kind in a run."""
        notes = []
        for case, names in cases.items():
            if not names:
                continue
            notes.append(f"{self._what}: {case}: {shortened(first_of(names, _NAMED))}")
            if case not in self._told:
                self._told.add(case)
                log(WARNING, "%s (in later rounds, only the records say so)", notes[-1])
        return notes


def _rename(contents: Contents, layout: tuple[object, ...]) -> tuple[str, ...]:
    """Name the array record and the metric record of all replies alike, and return the names."""
    # Both at once: a reply may have either under the other's name.
    named = {
        client: (list(of_kind(content, ArrayRecord)), list(of_kind(content, MetricRecord)))
        for client, content in contents.items()
    }
    single = [kind for kind in (0, 1) if all(len(own[kind]) == 1 for own in named.values())]
    names = {client: tuple(own[kind][0] for kind in single) for client, own in named.items()}
    counts = Counter(names.values())
    # Those of the last round have a vote.
    counts.update(own for own in list(counts) if all(name in layout for name in own))
    ((usual, _),) = counts.most_common(1)
    for client, own in names.items():
        if own != usual:
            records = [contents[client].pop(name) for name in own]
            contents[client].update(zip(usual, records, strict=True))
    return usual


def _entries(content: RecordDict) -> dict[tuple[str, str], object]:
    return {
        (record, name): value
        for record, metrics in of_kind(content, MetricRecord).items()
        for name, value in metrics.items()
    }


def _complete(column: list[object], form: Form, weights: np.ndarray) -> list[object] | None:
    """Return a metric of all clients, with the weighted mean of others where it is missing."""
    # None if nobody has it, or nobody has some of it.
    missing = [math.nan] * (1 if form == _NUMBER else int(form))
    rows = [missing if value is None else _floats(value) for value in column]
    table = np.array(rows, dtype=np.float64)
    known = np.isfinite(table)
    if not known.any(axis=0).all():
        return None
    heavy = weights[:, None] * known
    means = (np.where(known, table, 0.0) * (heavy / heavy.sum(axis=0))).sum(axis=0)
    full = np.where(known, table, means).tolist()
    if form == _NUMBER:
        full = [row[0] for row in full]
    return [
        old if old is not None and _is_finite(old) else new
        for old, new in zip(column, full, strict=True)
    ]


def _form(value: object) -> Form:
    return len(value) if isinstance(value, list) else _NUMBER


def _singles(content: RecordDict) -> dict[str, float]:
    return {
        name: _float(value)
        for metrics in of_kind(content, MetricRecord).values()
        for name, value in metrics.items()
        if not isinstance(value, list)
    }


def _is_finite(value: object) -> bool:
    return all(map(math.isfinite, _floats(value)))


def _floats(value: Any) -> list[float]:
    return [_float(entry) for entry in (value if isinstance(value, list) else [value])]


def _float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:  # a whole number beyond the range of floating point
        return math.inf
