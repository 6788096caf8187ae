"""The same agents, on a Redis broker that gives up on whoever has a message for more than two seconds."""

from __future__ import annotations

from .agents import app

app.conf.broker_transport_options = {
    "visibility_timeout": 2,
    "unacked_restore_interval": 1,
    "unacked_restore_throttle": 1,
}
