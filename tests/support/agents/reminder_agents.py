"""Agents whose questions have reminders. The environment variable TEST_ESCALATION contains the URL for escalations."""

from __future__ import annotations

import os

from celery import Celery

from a2a_celery import A2A, Question, Turn

AFTER = (4.0, 8.0)
"""Seconds after a question at which its reminders are due."""

ESCALATION_URL = os.environ.get("TEST_ESCALATION", "")

app = Celery("tests", broker=os.environ.get("CELERY_BROKER_URL", "memory://"), set_as_current=False)
app.conf.update(task_default_queue=os.environ.get("TEST_QUEUE", "celery"))
a2a = A2A(app)


@a2a.agent("reminds", description="Asks, and reminds.")
async def reminds(turn: Turn) -> str:
    return f"answer: {await turn.ask('Go on?', remind_after=AFTER, escalate_to=ESCALATION_URL)}"


@a2a.agent("reminds-of-all", description="Asks several questions, and reminds.")
def reminds_of_all(turn: Turn) -> str:
    questions = {"size": Question("Which size?", int)}
    answers = turn.blocking.ask_all(questions, remind_after=AFTER, escalate_to=ESCALATION_URL)
    return f"size: {answers['size']}"
