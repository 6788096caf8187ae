"""App of `plain_tasks` whose brokers redeliver messages.

With TEST_VISIBILITY, a Redis broker has that visibility timeout in seconds.
"""

from __future__ import annotations

import os

from tests.support.agents.plain_tasks import app

if "TEST_VISIBILITY" in os.environ:
    app.conf.broker_transport_options = {
        "visibility_timeout": float(os.environ["TEST_VISIBILITY"]),
        "unacked_restore_interval": 1,
        "unacked_restore_throttle": 1,
    }
