"""Schedules of the test agents, for tests with ``celery beat``."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from celery.schedules import crontab

from a2a_celery import Turn
from tests.support.agents.basic import a2a, app

app.conf.beat_max_loop_interval = 0.5
app.conf.redbeat_redis_url = os.environ.get("A2A_STORE_URL")


@a2a.agent("gated")
async def gated(turn: Turn) -> str:
    """Wait while the file named in TEST_GATE exists, and return the message."""
    while Path(os.environ["TEST_GATE"]).exists():  # noqa: ASYNC110, ASYNC240 - another process removes it
        await asyncio.sleep(0.02)
    return turn.text


a2a.schedule("often", 1, "echo", "now", owner="ops")
a2a.schedule("skipping", 1, "gated", "now", owner="ops")
a2a.schedule("allowing", 1, "gated", "now", owner="ops", overlap="allow")
a2a.schedule("each-minute", crontab(), "echo", "now", owner="ops")
