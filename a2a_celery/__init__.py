"""A2A on a Celery fleet.

The gateway (``gateway``) stores a message as a task with its first run (``store``) and publishes a Celery task
(``dispatch``). A worker claims the run, calls the agent and appends the agent's events to the log of the task
(``execution``). Every stream, on any gateway, reads this log. The watcher (``watcher``) recovers lost runs and delivers
webhooks. ``lifecycle`` decides which changes of a task are legal.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .app import A2A
from .errors import (
    A2ACeleryError,
    ArchiveUnavailable,
    AuthRequired,
    BlobsUnavailable,
    BrokerUnavailable,
    ChildFailed,
    ChildInterrupted,
    ChildRefused,
    ConfigError,
    Failed,
    InputRequired,
    Rejected,
    SessionConflict,
    SessionError,
    SignalRefused,
    StepError,
    StepFailed,
    StepsChanged,
    StoreUnavailable,
)
from .settings import Settings

if TYPE_CHECKING:
    from .execution.agents.turn import Turn
    from .execution.events.activities import current_execution
    from .execution.plain_tasks.threaded_call import current_turn
    from .features.hooks.run_hooks import RunInfo
    from .features.questions.answer import Answer
    from .features.sessions.session import ContextSession, current_session
    from .features.steps.durable_steps import step
    from .features.steps.journal import current_step_key
    from .lifecycle.questions import Question
    from .lifecycle.signals import ReceivedSignal
    from .operations.errors import LimitExceededError
    from .submission import TaskHandle
else:
    _LAZY = {
        "Answer": "features.questions.answer",
        "ContextSession": "features.sessions.session",
        "LimitExceededError": "operations.errors",
        "Question": "lifecycle.questions",
        "ReceivedSignal": "lifecycle.signals",
        "RunInfo": "features.hooks.run_hooks",
        "TaskHandle": "submission",
        "Turn": "execution.agents.turn",
        "current_execution": "execution.events.activities",
        "current_session": "features.sessions.session",
        "current_step_key": "features.steps.journal",
        "current_turn": "execution.plain_tasks.threaded_call",
        "step": "features.steps.durable_steps",
    }
    """Module of each public name that is imported on first use, because the module imports the SDK."""

    def __getattr__(name: str) -> Any:
        if name not in _LAZY:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(f".{_LAZY[name]}", __name__), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *_LAZY})


__all__ = [
    "A2A",
    "A2ACeleryError",
    "Answer",
    "ArchiveUnavailable",
    "AuthRequired",
    "BlobsUnavailable",
    "BrokerUnavailable",
    "ChildFailed",
    "ChildInterrupted",
    "ChildRefused",
    "ConfigError",
    "ContextSession",
    "Failed",
    "InputRequired",
    "LimitExceededError",
    "Question",
    "ReceivedSignal",
    "Rejected",
    "RunInfo",
    "SessionConflict",
    "SessionError",
    "Settings",
    "SignalRefused",
    "StepError",
    "StepFailed",
    "StepsChanged",
    "StoreUnavailable",
    "TaskHandle",
    "Turn",
    "current_execution",
    "current_session",
    "current_step_key",
    "current_turn",
    "step",
]

__version__ = "0.2.0"
