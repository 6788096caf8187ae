"""App of the test agents. Broker and result backend find the primary TEST_SENTINEL_MASTER through Sentinels."""

from __future__ import annotations

import os

from tests.support.agents.basic import app

OPTIONS = {"master_name": os.environ["TEST_SENTINEL_MASTER"], "sentinel_kwargs": {"socket_timeout": 1}}

app.conf.broker_transport_options = OPTIONS
app.conf.result_backend = os.environ["TEST_RESULTS"]
app.conf.result_backend_transport_options = OPTIONS
