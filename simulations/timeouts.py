"""How long the app waits beside what strategies wait for: seconds, all in one place."""

CLUSTER_ANSWERS = 5.0  # for the Ray cluster of ``RAY_ADDRESS`` to take a connection
DOWNLOAD_ANSWERS = 60.0  # for a site to take a connection, or to send more of a file of a data set
CLIENTS_END = 10.0  # for clients still at work when the run is over; then their workers are killed
HUB_ANSWERS = 10.0  # for the Hugging Face hub to answer at all, before a data set is asked of it
DRIVER_ANSWERS = 20.0  # for the GPU's driver to say how much memory is free
PROCESSES_END = 2.0  # for what a command has started to end when asked, and again when killed
ORPHANS_END = 3.0  # the same where the command itself was killed, and the watchdog does it
SUPERLINK_STARTS = 120.0  # for Flower's local SuperLink to start, on a busy machine
SUPERLINK_ANSWERS = 5.0  # for it to answer that it has started; asked again until then
RUN_ENDS = 30.0  # for Flower to say how a run ended, after its log has ended
LOOK_AT_RUN_AGAIN = 0.2  # between two looks at a run of Flower's
NEWS_IN_LOG = 60.0  # between two lines about what takes long, in a log, which shows no bar
NODE_ENDS = 10.0  # for a node of a cluster to be gone after one of its workers, if it ends
LOOK_AT_NODES_AGAIN = 0.2  # between two looks at them
NODES_COME = 5.0  # between two looks for nodes that have come, while no job is done
