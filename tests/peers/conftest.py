"""Fixtures for tests with clients and servers of other A2A libraries. Each library has a separate environment."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.processes.fleet import Fleet, Gateway, running_fleet
from tests.support.receivers.posts import DELIVERING
from tests.support.receivers.receiver import Receiver, receiver


@pytest.fixture(scope="session")
def hooks() -> Iterator[Receiver]:
    with receiver() as hooks:
        yield hooks


@pytest.fixture(scope="session")
def gateways(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Gateway, Gateway]]:
    """Two gateways of a fleet with two workers, a watcher and the sample executor."""
    with running_fleet(tmp_path_factory.mktemp("fleet"), app="tests.peers.app", **DELIVERING) as fleet:
        fleet.worker(pool="prefork", concurrency=2)
        fleet.worker(pool="threads", concurrency=4)
        fleet.watcher()
        yield _gateway(fleet), _gateway(fleet)


def _gateway(fleet: Fleet) -> Gateway:
    # google-adk's client refuses a card whose gRPC address has another port: see docs/deployment.md
    return fleet.gateway(grpc=True, A2A_GRPC_PUBLIC_ADDRESS="")
