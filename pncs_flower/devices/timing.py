"""What an exchange of messages takes on the clients' devices, and whose replies come in time."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from pncs_flower.randomness import generator

from .device import Device, Span


@dataclass(frozen=True)
class Task:
    """One message to a client, what it makes the client do, and its reply.

    Attributes
    ----------
    client : str
        Its key.
    bytes_down, bytes_up : int
        Of the message and of its reply.
    examples : float
        Examples that the client goes through in between, as training counts them.
    names : tuple of int or str
        What it depends on, with the seed and the client, whether the device breaks off.
    """

    client: str
    bytes_down: int
    examples: float
    bytes_up: int
    names: tuple[int | str, ...] = ()


class Outcome(NamedTuple):
    """What came of a task.

    Attributes
    ----------
    span : Span
        When it was done, in seconds since all were sent; as far as the device came, if it broke
        off.
    problem : str
        Why the reply does not count; empty if it does.
    late : bool
        Whether it was sent all the same, but too late.
    """

    span: Span
    problem: str = ""
    late: bool = False


def time_tasks(
    tasks: Iterable[Task],
    device_of: Callable[[str], Device],
    seed: int,
    start: float,
    deadline: float | None = None,
) -> list[Outcome]:
    """Return what comes of tasks that are all sent at one time, in their order.

    Spans are in seconds from the start on.

    A client does its own one after the other. A device that goes, or breaks off, does none of the
    later ones. Who is not done ``deadline`` seconds after the start is late.
    """
    # Seconds are from the start on: the same work takes the same time whatever the clock says, and
    # who is done just at the deadline is in time in each round.
    free: dict[str, float] = {}  # when each client is done with what it was asked before
    stopped: dict[str, str] = {}
    times = Counter[tuple[int | str, ...]]()  # that a client was asked for the same
    outcomes: list[Outcome] = []
    for task in tasks:
        device, client = device_of(task.client), task.client
        whole = device.span(free.get(client, 0.0), task.bytes_down, task.examples, task.bytes_up)
        end, problem = whole.sent, stopped.get(client, "")
        if problem:
            end = whole.asked
        elif (leaves := device.availability.leaves(start + whole.asked) - start) < end:
            end = max(leaves, whole.asked)
            problem = _after("its device was gone", end)
        if device.dropout and not problem:
            names = (*task.names, client)
            again = (times[names],) if times[names] else ()
            times[names] += 1
            rng = generator(seed, "dropout", *names, *again)
            if rng.random() < device.dropout:
                end = whole.asked + float(rng.random()) * (whole.sent - whole.asked)
                problem = _after("its device broke off", end)
        free[client], late = end, False
        if problem:
            stopped[client] = problem
        elif deadline is not None and end > deadline:
            late = True
            problem = (
                f"its reply would have come after {end:.3f} s of simulated time, later than the "
                f"deadline of {deadline:g} s"
            )
        outcomes.append(Outcome(whole.cut(end), problem, late))
    return outcomes


def waited(outcomes: Iterable[Outcome], deadline: float | None = None) -> float:
    """Return for how many seconds a server waits for replies: until all are there or lost."""
    longest = max((outcome.span.sent for outcome in outcomes), default=0.0)
    return longest if deadline is None else min(longest, deadline)


def _after(what: str, seconds: float) -> str:
    return f"{what} after {seconds:.3f} s of simulated time"
