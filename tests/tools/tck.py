"""Start a fleet for the A2A Technology Compatibility Kit (TCK): python -m tests.tools.tck.

The fleet has a worker, a watcher, and a gateway with JSON-RPC, HTTP+JSON and gRPC. The tool prints the kit's command,
and stops the fleet on Ctrl-C.
"""

from __future__ import annotations

import argparse
import signal
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.support.processes.fleet import running_fleet


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.tools.tck", description=__doc__)
    parser.add_argument("--minimal", action="store_true", help="declare neither streaming nor push notifications")
    variables = {
        "A2A_SECRET_KEY": "0" * 32,  # the kit creates webhooks with credentials
        "A2A_ALLOW_NETWORKS": "127.0.0.0/8 ::1/128",  # the kit receives webhooks on localhost
        **({"TCK_MINIMAL": "1"} if parser.parse_args(arguments).minimal else {}),
    }
    with (
        tempfile.TemporaryDirectory() as folder,
        running_fleet(Path(folder), app="tests.support.agents.tck", **variables) as fleet,
    ):
        signals = {signal.SIGINT, signal.SIGTERM}
        fleet.worker()
        fleet.watcher()
        gateway = fleet.gateway(grpc=True)
        signal.pthread_sigmask(signal.SIG_BLOCK, signals)
        print(f"A2A 1.0: python run_tck.py --sut-host {gateway.url}")
        print(f"A2A 0.3: python run_tck.py --sut-url {gateway.url} --category all --transports jsonrpc,grpc,rest")
        print("Stop the fleet with Ctrl-C.", flush=True)
        signal.sigwait(signals)


if __name__ == "__main__":
    main()
