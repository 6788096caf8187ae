"""App with two of the agents of `agents`, like an older release of a fleet's app."""

from __future__ import annotations

import os

from celery import Celery

from a2a_celery import A2A
from tests.support.agents.basic import echo, silent

app = Celery("few")
app.conf.task_default_queue = os.environ.get("TEST_QUEUE", "celery")
app.conf.broker_connection_retry_on_startup = True
a2a = A2A(app)
for name, function in (("echo", echo), ("silent", silent)):
    a2a.agent(name)(function)
