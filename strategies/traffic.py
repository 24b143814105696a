"""What a round sends up, beside what full participation would."""

from logging import INFO, WARNING

from flwr.app import MetricRecord
from flwr.common import log

from .record import RoundListener, RoundRecord


class Traffic(RoundListener):
    """Logs once a run the bytes that went up in a round, and those of all clients' updates."""

    def __init__(self) -> None:
        self._told = False

    def closed(self, record: RoundRecord, metrics: MetricRecord | None) -> None:
        """Tell of the first round with an update: in others none of it is known."""
        if self._told or not record.delivered:
            return
        self._told = True
        training, clients = record.bytes_up["training"], len(record.clients)
        summaries = sum(n for phase, n in record.bytes_up.items() if "pre-round" in phase)
        # Replies of clients that failed are short.
        share = (training + summaries) / max(1, training * clients // len(record.delivered))
        text = (
            f"Round {record.round}: {_size(training)} of updates"
            + (f" and {_size(summaries)} of summaries" if record.asked else "")
            + f" went up, {share:.0%} of what the updates of all {clients} clients would take"
        )
        level = INFO
        if share > 1 and summaries > training:  # else it is the choice of so many that costs
            level = WARNING
            text += (
                ". A smaller sketch asks for less, such as sketch='coordinates:5%@int8', and so do "
                "fewer layers=[...]"
            )
        log(level, "%s", text)


def _size(num_bytes: float) -> str:
    for unit in ("B", "kB", "MB"):
        if num_bytes < 999.5:
            return f"{num_bytes:.3g} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.3g} GB"
