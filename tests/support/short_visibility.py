"""App of `agents` with a visibility timeout of two seconds for the Redis broker."""

from __future__ import annotations

from .agents import app

app.conf.broker_transport_options = {
    "visibility_timeout": 2,
    "unacked_restore_interval": 1,
    "unacked_restore_throttle": 1,
}
