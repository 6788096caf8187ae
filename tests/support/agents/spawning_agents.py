"""Agents of an app whose prefork children are spawned by default, as on macOS. TEST_START_METHOD selects the method."""

from __future__ import annotations

import os

import billiard
from celery import Celery

from a2a_celery import A2A, Turn, current_turn

billiard.set_start_method(os.environ.get("TEST_START_METHOD", "spawn"), force=True)

celery_app = Celery("spawning")
celery_app.conf.task_default_queue = os.environ.get("TEST_QUEUE", "celery")
a2a = A2A(celery_app)


@a2a.agent("who")
async def who(turn: Turn) -> str:
    """Return the start method of the child."""
    return str(billiard.get_start_method())


@celery_app.task
def claimed() -> str:
    turn = current_turn()
    assert turn is not None
    return turn.task_id


a2a.expose(claimed)
