"""Every time limit, interval and back-off of the server side, in one place.

In seconds, unless it says rounds. A user sets the first four, by the names behind them.
"""

# How long a round waits, unless the user says otherwise.
WAIT = 60.0  # for clients to introduce themselves, from the first answer on: wait_timeout
START = 600.0  # for the first answers of a run, from the start on: start_timeout
SUMMARIES = 600.0  # for the answers of a pre-round: summary_timeout
TRAINING = 600.0  # for full updates, and for an evaluation: start(timeout=)
WAIT_IN_APP = 180.0  # wait_timeout of `pncs run`: on a busy machine workers start long after others

# Meeting the clients.
LOOK_FOR_CLIENTS = 0.2  # between two looks at who is connected
RETRY = 10.0  # until a node that failed is asked again, while clients are missing
RETRY_IN_VAIN = 3.0  # ... while no answer gives hope
TELL_FIRST = 1.0  # until the log says who is waited for
TELL_AGAIN = 30.0  # ... until it says so again

# A base strategy that waits for more clients than it is given looks for them over and over.
BASE_PATIENCE = 3.0  # it may go on for so long,
BASE_LOOKS = 10  # ... and look so many times

# Looking for replies on Flower's own grids.
LEAST_PAUSE = 0.2  # between two looks on a SuperLink
LEAST_PAUSE_SIMULATED = 0.02  # ... in a simulation
MOST_PAUSE = 3.0  # as Flower itself
PAUSE_SHARE = 0.05  # of the time since the last reply
PAUSE_PER_MESSAGE = 0.001  # what a look costs grows with the messages that are open
IDLE = 0.5  # without a reply after which workers of a simulation may have nothing to do

LONGEST_REST = 16  # rounds


def rounds_of_rest(times: int) -> int:
    """Return for how many rounds to leave alone what failed so many times: 1, 2, 4, ... 16."""
    doubled: int = 2 ** (times - 1)
    return min(doubled, LONGEST_REST)
