"""The agents of the tests, with broker and results behind the Sentinels that TEST_SENTINEL_MASTER is known to."""

from __future__ import annotations

import os

from .agents import app

OPTIONS = {"master_name": os.environ["TEST_SENTINEL_MASTER"], "sentinel_kwargs": {"socket_timeout": 1}}

app.conf.broker_transport_options = OPTIONS
app.conf.result_backend = os.environ["TEST_RESULTS"]
app.conf.result_backend_transport_options = OPTIONS
