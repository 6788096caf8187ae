"""Celery app of the fleet that the clients call, with the sample executor given by its import path."""

from __future__ import annotations

import os

from celery import Celery

from a2a_celery import A2A

from .sample import CARD

app = Celery("peers")
app.conf.task_default_queue = os.environ.get("TEST_QUEUE", "celery")
app.conf.broker_connection_retry_on_startup = True
a2a = A2A(app)
a2a.add_agent(CARD, "tests.peers.sample:SampleExecutor")
