"""Agents that are retried, and a receiver of Celery's signal ``task_retry``."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from a2a.helpers import new_text_part
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.tasks import TaskUpdater
from celery.exceptions import MaxRetriesExceededError, Retry
from celery.signals import task_retry

from a2a_celery import Failed, Turn
from tests.support.agents.basic import a2a, app, card

AT_ONCE: dict[str, Any] = {"max_retries": 2, "default_retry_delay": 0}


class Throttled(Exception):
    """Exception of a provider's client, with the provider's response."""

    response = SimpleNamespace(headers={"Retry-After": "1"})


@a2a.agent(
    "flaky", autoretry_for=(ConnectionError,), dont_autoretry_for=(ConnectionResetError,), max_attempts=2, **AT_ONCE
)
async def flaky(turn: Turn) -> AsyncIterator[str]:
    """Start an artifact in each attempt. Fail in as many attempts as the message requests."""
    yield f"attempt {turn.retries + 1} "
    if turn.text == "reset":
        raise ConnectionResetError("a secret")
    if turn.retries < int(turn.text):
        raise ConnectionError("a secret")
    yield f"of run {turn.attempt}"


@a2a.agent("flaky-function", autoretry_for=(OSError,), retry_backoff=1, retry_backoff_max=1, max_retries=2)
def flaky_function(turn: Turn) -> str:
    """Fail in as many attempts as the message requests. The retries have a backoff."""
    if turn.retries < int(turn.text):
        raise ConnectionError("a secret")
    return f"attempt {turn.retries + 1}"


@a2a.agent("throttled", autoretry_for=(Throttled,))
async def throttled(turn: Turn) -> str:
    """Fail in the first attempt with a Retry-After of one second. The default delay is three minutes."""
    if not turn.retries:
        raise Throttled("a secret")
    return f"attempt {turn.retries + 1}"


@a2a.agent("later", session=True, max_retries=1)
async def later(turn: Turn) -> str:
    """Ask a question, save the answer in the session, and retry after the number of seconds in the message."""
    name = await turn.ask("Name?")
    if not turn.retries:
        await turn.checkpoint({"kept": str(name)})
        try:
            raise LookupError("a secret")
        except LookupError as error:
            raise turn.retry(exc=error, countdown=float(turn.text)) from error
    return f"{name}, {turn.session.state['kept']}, turn {turn.number}"


@a2a.agent("blocking-later")
def blocking_later(turn: Turn) -> str:
    """Request a retry at a point in time, from a plain function."""
    if not turn.retries:
        raise turn.blocking.retry(eta=datetime.now(UTC) + timedelta(seconds=1))
    return "later"


@a2a.agent("gives-up", autoretry_for=(Exception,), max_retries=5)
async def gives_up(turn: Turn) -> str:
    """Request a retry until the maximum is exceeded. Then return a text or fail."""
    try:
        raise turn.retry(max_retries=1, countdown=0, exc=Failed("Enough.") if turn.text == "fails" else None)
    except MaxRetriesExceededError:
        if turn.text == "raises":
            raise
        return f"gave up after {turn.retries}"


@a2a.agent("lost-and-retried", autoretry_for=(LookupError,), max_attempts=2, **AT_ONCE)
async def lost_and_retried(turn: Turn) -> str:
    """Fail, hang in the first retry until the worker is lost, fail again in the next attempt, and complete."""
    if turn.attempt == 1 and turn.retries == 1:
        await asyncio.Event().wait()
    if turn.retries < 2:
        raise LookupError("a secret")
    return f"attempt {turn.attempt}, {turn.retries} retries"


class Flaky(AgentExecutor):
    """Executor that raises Celery's `Retry`."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        assert context.task_id is not None
        assert context.context_id is not None
        updater = TaskUpdater(event_queue, context.task_id, context.context_id)
        retries = context.call_context.state["a2a_retries"]
        if retries < int(context.get_user_input()):
            raise Retry("a secret", exc=LookupError("a secret"), when=0)
        await updater.add_artifact([new_text_part(f"attempt {retries + 1}")], last_chunk=True)
        await updater.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        return


a2a.add_agent(card("flaky-executor"), Flaky, max_retries=1)


@task_retry.connect
def record(sender: Any, request: Any, reason: Retry, **_: Any) -> None:
    """Write the arguments of Celery's ``task_retry`` signal to a file."""
    with Path(os.environ["TEST_SIGNALS"]).open("a") as file:
        file.write(f"{sender.name} {request.id} {request.retries} {reason.exc!r}\n")


app.conf.worker_send_task_events = "TEST_EVENTS" in os.environ
