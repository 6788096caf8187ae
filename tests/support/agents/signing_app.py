"""App with all test agents and tasks that signs Celery messages, unless TEST_UNSIGNED is set."""

from __future__ import annotations

import os
from typing import Any

from celery import chain

from a2a_celery.client.calling import call_task
from tests.support.agents.basic import a2a, app

if "TEST_UNSIGNED" not in os.environ:
    app.conf.update(
        security_key=os.environ["TEST_KEY"],
        security_certificate=os.environ["TEST_CERTIFICATE"],
        security_cert_store=os.environ["TEST_CERTIFICATES"],
        task_serializer="auth",
        result_serializer="auth",
        event_serializer="auth",
        accept_content=["auth"],
    )
    app.setup_security()

from tests.support.agents import plain_tasks  # only now: an exposed task keeps its app's serializer

__all__ = ["a2a", "app", "call", "plain_tasks"]

call = call_task(app, remotes={"echo": os.environ.get("TEST_REMOTE", "http://127.0.0.1:1")})


@app.task
def calls(text: str) -> Any:
    """Delegate the task to a canvas that calls an agent and returns its text."""
    return chain(call.s("echo", text), text_of_result.s())


@app.task
def text_of_result(result: dict[str, Any]) -> str:
    """Return the agent's text from the result of the previous step of a chain."""
    return str(result["text"])


a2a.expose(calls)
