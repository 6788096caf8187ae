"""Parent agents whose worker kills itself once, after a child has started and before the child's id is recorded."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from a2a_celery import Turn
from a2a_celery.features.families.calls import STARTED
from a2a_celery.features.steps.journal import JournalCall, RunJournal
from tests.support.agents.basic import a2a, app  # noqa: F401  the app of these agents
from tests.support.agents.family_agents import child, url_of

KILLED = Path(os.environ["TEST_FOLDER"]) / "killed"

record = RunJournal.record


async def record_or_die(self: RunJournal, call: JournalCall, form: str, content: bytes) -> Any:
    """Record a journal entry. Instead of the first entry with a child's id, kill this process."""
    if form == STARTED and not KILLED.exists():
        KILLED.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return await record(self, call, form, content)


RunJournal.record = record_or_die  # type: ignore[method-assign]

a2a.agent("detects-repeats", description="Echoes.", idempotency_window=600)(child)


@a2a.agent("calls-remote", max_attempts=3)
async def calls_remote(turn: Turn) -> str:
    """Call an agent that deduplicates messages, over HTTP."""
    return str((await turn.call(url_of("detects-repeats"), turn.text)).text)
