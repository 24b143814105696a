"""Two messages in one: an evaluation, and the request for a summary for the next round.

What a message costs, with Flower, is not what is in it: a process on a SuperNode, tens of
milliseconds on Ray. The records of the evaluation lie beside those of the request under names of
their own, in the message and in its reply. What is in both is sent once.
"""

from flwr.app import RecordDict

_EVALUATION = "pncs-evaluation/"


def join(request: RecordDict, evaluation: RecordDict) -> RecordDict:
    """Return both contents as one."""
    beside = {_EVALUATION + name: record for name, record in evaluation.items()}
    return RecordDict({**request, **beside})


def part(content: RecordDict) -> tuple[RecordDict, RecordDict]:
    """Return the contents that were joined; the evaluation's is empty if there was none."""
    request, evaluation = RecordDict(), RecordDict()
    for name, record in content.items():
        whose = evaluation if name.startswith(_EVALUATION) else request
        whose[name.removeprefix(_EVALUATION)] = record
    return request, evaluation
