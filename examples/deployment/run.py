"""Start a SuperLink and three SuperNodes on this machine, run the app beside it, stop everything.

What is started are Flower's own programs, as docs/deployment.md starts them by hand. Needs
pncs-flower in this environment; with --tls and --authentication also openssl and ssh-keygen.

Examples
--------
python examples/deployment/run.py
python examples/deployment/run.py --rounds 5 --tls
python examples/deployment/run.py --authentication      # with TLS, and a stranger at the door
python examples/deployment/run.py --isolation process
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

from credentials import Credentials, make_credentials, make_node_key
from federation import Federation, FederationError

from pncs_flower.simulations.machine.signals import exit_on_signals

APP = Path(__file__).resolve().parent / "app"
NUM_SITES = 3


def main(arguments: list[str] | None = None) -> int:
    """Run the example, and return 0 if the run was completed, else 1."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3, help="rounds of training (default: 3)")
    parser.add_argument("--tls", action="store_true", help="encrypt connections to the SuperLink")
    parser.add_argument(
        "--authentication",
        action="store_true",
        help="accept SuperNodes with a registered key only; implies --tls. A fourth SuperNode, "
        "whose key is not registered, shows what happens to it",
    )
    parser.add_argument(
        "--isolation",
        choices=("subprocess", "process"),
        default="subprocess",
        help="process: the programs that run the apps are started beside SuperLink and "
        "SuperNodes, not by them (default: subprocess)",
    )
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="pncs-") as folder, exit_on_signals():
        try:
            return run(Path(folder), options)
        except (FederationError, RuntimeError) as error:
            print(error, file=sys.stderr)
            return 1


def run(folder: Path, options: argparse.Namespace) -> int:
    """Carry out what the options say, with all files in a folder."""
    credentials: Credentials | None = None
    if options.tls or options.authentication:
        credentials = make_credentials(folder / "credentials")
    history = folder / "history.jsonl"
    with Federation(
        folder / "federation",
        credentials=credentials,
        authentication=options.authentication,
        isolation=options.isolation,
    ) as federation:
        print(f"SuperLink: {federation.address}", flush=True)
        nodes = []
        for site in range(NUM_SITES):
            key = None
            if options.authentication:
                key = make_node_key(folder / "credentials", f"site-{site}")
                federation.register(key.with_suffix(".pub"))
            node_config = {"partition-id": site, "num-partitions": NUM_SITES}
            nodes.append(federation.start_supernode(f"site-{site}", node_config, key))
        stranger = None
        if options.authentication:
            key = make_node_key(folder / "credentials", "stranger")
            stranger = federation.start_supernode("stranger", {"partition-id": NUM_SITES}, key)
        federation.wait_for(nodes)
        print(f"SuperNodes: {len(nodes)} connected", flush=True)
        submitted = federation.submit(APP, {"num-rounds": options.rounds, "history": str(history)})
        status, details = federation.wait(submitted)
        if stranger is not None:
            ended = stranger.poll()
            told = "still running" if ended is None else f"turned away, exit code {ended}"
            print(f"SuperNode whose key is not registered: {told}")
        if history.exists():
            print(table(history))
        print(f"Run {submitted.id}: {status} {details}".strip())
        return 0 if status == "finished:completed" else 1


def table(history: Path) -> str:
    """Return a line for each round in a strategy's history."""
    lines = [f"{'round':>5}  {'pre-round':<9}  {'asked':<8}  {'chosen':<8}  {'similarity':>10}"]
    for line in history.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        lines.append(
            f"{row['round']:>5}  {row['pre_round']:<9}  {', '.join(sorted(row['asked'])):<8}  "
            f"{', '.join(row['chosen']):<8}  {row['mean_similarity']:>10.3f}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
