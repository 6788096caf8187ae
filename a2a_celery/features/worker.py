"""Features in workers: the sections with which an agent's runs are claimed, and what the runs open."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

from ..dispatch import RunOptions
from ..execution.agents.running_agent import RunningAgent
from ..execution.events.queue import RunEventQueue
from ..execution.open_run import OpenRun
from ..lifecycle import Retried
from ..store import Keys
from ..store.verbs import Section
from .feature import RunFeature
from .retries.retries import next_attempt
from .sessions.section import SessionSection
from .sessions.session import CURRENT as CURRENT_SESSION
from .sessions.session import open_session
from .steering.messages import open_messages
from .steering.section import SteeringSection
from .steps.journal import RunJournal

CLAIM_SECTIONS: Mapping[tuple[str, Any], Callable[[Keys], Section[Any]]] = {
    ("session", True): SessionSection.of,
    ("on_message", "steer"): SteeringSection.of,
}
"""Functions that return the sections of ``claim_run``, by the option of the agent and its value that turn the feature
on. The sections also take part in ``suspend_run``."""

RUN_FEATURES: Mapping[tuple[str, Any], Callable[[OpenRun, RunEventQueue], Awaitable[RunFeature]]] = {
    ("session", True): open_session,
    ("on_message", "steer"): open_messages,
}
"""Functions that open the features of a run, by the option of the agent and its value that turn the feature on.

A function is called before the agent, with the complete claim, in the asyncio task of the agent. Its exceptions are
treated like exceptions of the agent."""

NEXT_ATTEMPTS: Sequence[Callable[[RunningAgent, BaseException], tuple[Retried, RunOptions] | None]] = (next_attempt,)
"""Functions that return the next attempt of a run whose agent has raised an exception, and its options, or None. Celery
itself retries plain Celery tasks."""

REPLAY_FEATURES: Sequence[type[RunFeature]] = (RunJournal,)
"""Features that replay the journal of a turn. If an earlier run has recorded entries, they are opened before the
features of `RUN_FEATURES`."""

CONTEXT_VARIABLES: Sequence[ContextVar[Any]] = (CURRENT_SESSION,)
"""Context variables, with defaults, that features set when they are opened. The thread of a plain Celery task has the
same values."""
