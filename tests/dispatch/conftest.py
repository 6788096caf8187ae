"""Redis broker that the tests of publishing can kill and restart."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes.restarts import MortalRedis, mortal_redis


@pytest.fixture
def server(tmp_path: Path) -> Iterator[MortalRedis]:
    with mortal_redis(tmp_path) as server:
        yield server
        server.die()  # a graceful shutdown takes 0.1 s
