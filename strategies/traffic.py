"""What a round sends up, beside what full participation would."""

from dataclasses import replace
from logging import INFO, WARNING
from typing import Any

from flwr.app import MetricRecord
from flwr.common import log

from pncs_flower.plain_text import counted, size_in_words
from pncs_flower.sketches.kinds import parse_sketch

from .combination import Combination
from .record import RoundListener, RoundRecord
from .rule import SelectionRule


class Traffic(RoundListener):
    """Logs once a run the bytes that went up in a round, and those of all clients' updates."""

    def __init__(self, rule: SelectionRule, combination: Combination | None) -> None:
        # The combination where it asks for a sketch besides that of the rule.
        self._rule, self._combination = rule, combination
        self.told = False  # also by a run that this one goes on with

    def closed(self, record: RoundRecord, metrics: MetricRecord | None) -> None:
        """Tell of the first round with an update: in others none of it is known."""
        if self.told or not record.delivered:
            return
        self.told = True
        training, clients = record.bytes_up["training"], len(record.clients)
        summaries = sum(n for phase, n in record.bytes_up.items() if "pre-round" in phase)
        # Replies of clients that failed are short.
        share = (training + summaries) / max(1, training * clients // len(record.delivered))
        text = (
            f"Round {record.round}: {size_in_words(training)} of updates"
            + (f" and {size_in_words(summaries)} of summaries" if record.asked else "")
            + f" went up, {share:.0%} of what the updates of all ({counted(clients, 'client')}) "
            "would take"
        )
        level = INFO
        if share > 1 and summaries > training:  # else it is the choice of so many that costs
            level = WARNING
            less = [
                f"sketch={smaller!r}{whose}"
                for asker, whose in ((self._rule, ""), (self._combination, " of the combination"))
                if (smaller := _smaller_sketch(asker))
            ]
            less += ["fewer layers=[...]"] if hasattr(self._rule, "layers") else []
            text += (less and f". Less is asked for with {' or '.join(less)}") or ""
        log(level, "%s", text)


def _smaller_sketch(asker: object) -> str:
    """Return a smaller sketch than what a rule or combination asks for, which it takes too."""
    given, usual = (getattr(each, "sketch", "") for each in (asker, type(asker)))
    if not (given and isinstance(given, str) and isinstance(usual, str)):
        return ""
    sketch: Any = parse_sketch(given)
    for name in ("size", "percent"):
        if (number := getattr(sketch, name, 0)) > 1:
            usual = str(replace(sketch, **{name: number // 2}).spec)
            break
    return usual if usual not in ("", given) and _takes(asker, usual) else ""


def _takes(asker: Any, sketch: str) -> bool:
    """Tell whether a rule or combination can be made with a sketch, and is otherwise the same."""
    try:
        replace(asker, sketch=sketch)
    except (TypeError, ValueError):  # or it is made in a way of its own: nothing is known then
        return False
    return True
