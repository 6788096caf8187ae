"""Agents of an app with Sentry, which appends its events and transactions to a file in TEST_FOLDER."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import sentry_sdk
from celery import Celery
from sentry_sdk.envelope import Envelope
from sentry_sdk.integrations.celery import CeleryIntegration
from sentry_sdk.transport import Transport

from a2a_celery import A2A, Turn

FOLDER = Path(os.environ["TEST_FOLDER"])
EVENTS = FOLDER / "events"


class FileTransport(Transport):
    """Transport that appends each item to a file as a line of JSON."""

    def capture_envelope(self, envelope: Envelope) -> None:
        with EVENTS.open("a") as file:
            for item in envelope.items:
                if item.type in ("event", "transaction"):
                    file.write(json.dumps(item.payload.json) + "\n")


sentry_sdk.init(
    dsn="http://key@127.0.0.1:1/1",
    transport=FileTransport,
    traces_sample_rate=1,
    auto_enabling_integrations=False,
    integrations=[CeleryIntegration()],
)
app = Celery("sentry")
app.conf.task_default_queue = os.environ.get("TEST_QUEUE", "celery")
a2a = A2A(app)


def mark(tenant: str) -> None:
    """Add the tenant to the scope of the current run."""
    sentry_sdk.set_user({"id": tenant})
    sentry_sdk.set_tag("tenant", tenant)
    sentry_sdk.add_breadcrumb(category="test", message=tenant)


@a2a.agent("marked")
async def marked(turn: Turn) -> None:
    """Mark the scope, and fail when the test has created a file."""
    mark(turn.text)
    await turn.say("marked")
    while not (FOLDER / "go").exists():  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    raise ValueError(turn.text)


@a2a.agent("unmarked")
async def unmarked(turn: Turn) -> None:
    raise ValueError("unmarked")


@app.task
def native(tenant: str) -> None:
    mark(tenant)
    raise ValueError(tenant)


a2a.expose(native)
