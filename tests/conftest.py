"""What holds for all tests."""

import signal

# A command that a script starts in the background ignores Ctrl-C, and so would everything that a
# test starts from there and interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
