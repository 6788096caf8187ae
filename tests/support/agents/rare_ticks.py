"""Test agents with one schedule, whose ticks are so far apart that a test handles a single tick."""

from __future__ import annotations

from tests.support.agents.basic import a2a, app

app.conf.beat_max_loop_interval = 0.5

a2a.schedule("rare", 5, "echo", "now", owner="ops")
