"""App that records which processes import the agent and which run the lifespan."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from celery import Celery

from a2a_celery import A2A

app = Celery("preloaded")
app.conf.task_default_queue = os.environ.get("TEST_QUEUE", "celery")
app.conf.broker_connection_retry_on_startup = True
a2a = A2A(app)
a2a.agent("slow-import", description="Takes long to import.")(os.environ["TEST_SLOW_IMPORT"])


@a2a.add_lifespan
@asynccontextmanager
async def lifespan() -> AsyncIterator[None]:
    folder = Path(os.environ["TEST_LIFESPAN_FOLDER"])
    (folder / f"opened-{os.getpid()}").touch()
    yield
    (folder / f"closed-{os.getpid()}").touch()
