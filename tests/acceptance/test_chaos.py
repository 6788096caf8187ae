"""Chaos test of the documented guarantees, which hold while processes and servers are killed.

The test uses a fixed seed. `make chaos` uses other seeds and runs for longer.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.conftest import require_broker, require_compiler
from tests.support.chaos.run import ChaosRun
from tests.support.processes import small_disk
from tests.support.processes.restarts import server_of_version
from tests.support.processes.small_disk import SmallDisk

pytestmark = pytest.mark.nightly

SEED = int(os.environ.get("CHAOS_SEED", "1"))
SECONDS = float(os.environ.get("CHAOS_MINUTES", "0.75")) * 60
REDIS = os.environ.get("CHAOS_REDIS", "")
"""Prefix of the Redis server's version, or "" for any version."""
LIMIT = SECONDS * 1.25 + 400
DISK_BYTES = 2**31


@pytest.mark.timeout(LIMIT)
@pytest.mark.parametrize("broker", ["redis", "rabbitmq", "store"])
async def test_nothing_is_lost_doubled_or_stuck_whatever_dies(tmp_path: Path, broker: str) -> None:
    require_compiler()
    require_broker(broker)
    server = server_of_version(REDIS)
    assert server is not None, f"no Redis {REDIS} here"
    disk = SmallDisk(tmp_path / "disk", DISK_BYTES) if small_disk.is_available() else None
    if disk is None:
        print("the store's disk is never full: only root may mount a small one")
    run = ChaosRun(tmp_path, broker, SEED, SECONDS, server, disk)
    try:
        await run.run()
    finally:
        report = run.report()
        print(report)
        run.fleet.stop()
    assert not run.wrong, report
