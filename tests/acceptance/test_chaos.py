"""Everything dies, again and again, while clients want their answers: what is promised holds all the same.

The seed is fixed here; `make chaos` draws others and goes on for longer.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.chaos import ChaosRun

pytestmark = pytest.mark.nightly

SEED = int(os.environ.get("CHAOS_SEED", "1"))
SECONDS = float(os.environ.get("CHAOS_MINUTES", "0.75")) * 60
LIMIT = SECONDS + 400


@pytest.mark.timeout(LIMIT)
async def test_nothing_is_lost_doubled_or_stuck_whatever_dies(tmp_path: Path, broker: str) -> None:
    run = ChaosRun(tmp_path, broker, SEED, SECONDS)
    try:
        await run.run()
    finally:
        report = run.report()
        run.fleet.stop()
    print(report)
    assert not run.wrong, report
