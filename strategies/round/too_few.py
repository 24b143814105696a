"""Why too few clients take part, and what to do about it."""

from collections.abc import Collection, Mapping, Sequence

from pncs_flower.protocol import client_order

from ..errors import SelectionError, TooFewClientsError

__all__ = ["too_few"]

_LONGEST_TEXT = 600


def too_few(
    clients: Collection[str],
    known: Sequence[str],
    num_selected: int,
    failures: Mapping[int, str],
    heard: Collection[int],
    excluded: Collection[str],
    waited: float,
) -> SelectionError:
    """Return the error of a round that has too few clients.

    Parameters
    ----------
    clients : collection of str
        Those that take part.
    known : sequence of str
        Those that are there.
    num_selected : int
        How many a round needs.
    failures : mapping of int to str
        Why nodes could not introduce themselves.
    heard : collection of int
        Nodes that have answered at all.
    excluded : collection of str
        Clients left out for the rest of the run.
    waited : float
        Seconds waited.
    """
    if failures and not known:
        return _nobody_introduced(failures, heard, waited)
    short = f"{len(clients)} clients take part, but num_selected is {num_selected}"
    if len(known) >= num_selected:
        left_out = [key for key in known if key in excluded]
        refused = [key for key in known if key not in clients and key not in excluded]
        told = "; ".join(
            [f"eligible refuses {_some(refused)} (keys are text)"] * bool(refused)
            + [f"left out for the rest of the run: {_some(left_out)}"] * bool(left_out)
        )
        remedy = "Have eligible take more of them, or lower" if refused else "Lower"
        return TooFewClientsError(
            f"{short}: {len(known)} are here, but {told}. {remedy} num_selected"
        )
    reasons = "".join(f"; node {node_id}: {why}" for node_id, why in failures.items())
    longer = ", or wait for longer: with a larger start_timeout, and later wait_timeout"
    return TooFewClientsError(
        f"{short}; waited {waited:.0f} s{reasons[:_LONGEST_TEXT]}. Start more clients, or lower "
        f"num_selected{longer if failures.keys() - set(heard) else ''}"
    )


def _nobody_introduced(
    failures: Mapping[int, str], heard: Collection[int], waited: float
) -> SelectionError:
    answered = [node_id for node_id in failures if node_id in heard]
    node_id = (answered or list(failures))[0]
    of_one = f"of node {node_id}: {failures[node_id]}"
    if not answered:
        return SelectionError(
            f"none of the {len(failures)} clients that are connected has answered in {waited:.0f} "
            f"s; {of_one}. They are still starting (large imports, few CPUs) or hang: their own "
            "log says more. A larger start_timeout waits for longer"
        )
    starting = len(failures) - len(answered)
    others = f", and {starting} of them have not answered yet" if starting else ""
    return SelectionError(
        f"none of the {len(failures)} clients could introduce itself in {waited:.0f} s{others}; "
        f"{of_one}"
    )


def _some(keys: Sequence[str]) -> str:
    """Return the first of some keys as text."""
    first = ", ".join(repr(key) for key in sorted(keys, key=client_order)[:3])
    return first + (f" and {len(keys) - 3} more" if len(keys) > 3 else "")
