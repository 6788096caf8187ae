"""A2A on a Celery fleet.

The path of one message: the gateway (``gateway``) stores it as a task with its first run (``store``) and publishes a
Celery task (``dispatch``); a worker claims the run and lets the agent work (``execution``), whose events go into the
task's log; every stream, on any gateway, reads that log. The watcher (``watcher``) looks after what others dropped.
What a task may become is decided in ``lifecycle``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .agents import Agent
from .app import A2A
from .config import Settings
from .errors import (
    A2ACeleryError,
    AuthRequired,
    BrokerUnavailable,
    ConfigError,
    Failed,
    InputRequired,
    Rejected,
    SessionConflict,
    SessionError,
    StoreUnavailable,
)

if TYPE_CHECKING:
    from .execution.plain import current_turn
    from .execution.session import ContextSession, current_session
    from .execution.steps import current_execution
    from .execution.turn import Turn
    from .lifecycle.execution import (
        CHECKPOINT_STATES,
        EXECUTION_TRANSITIONS,
        ExecutionState,
        ExecutionStateMachine,
        IllegalTransition,
        Transition,
    )
    from .lifecycle.saved import InvalidSaved
    from .store.sdk import RedisTaskEventStream, RedisTaskStore
else:
    _LAZY = {
        "current_turn": "execution.plain",
        "ContextSession": "execution.session",
        "current_session": "execution.session",
        "current_execution": "execution.steps",
        "Turn": "execution.turn",
        "CHECKPOINT_STATES": "lifecycle.execution",
        "EXECUTION_TRANSITIONS": "lifecycle.execution",
        "ExecutionState": "lifecycle.execution",
        "ExecutionStateMachine": "lifecycle.execution",
        "IllegalTransition": "lifecycle.execution",
        "Transition": "lifecycle.execution",
        "InvalidSaved": "lifecycle.saved",
        "RedisTaskEventStream": "store.sdk",
        "RedisTaskStore": "store.sdk",
    }
    """The module of each public name that is imported when it is first used: these modules import the SDK."""

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
    "CHECKPOINT_STATES",
    "EXECUTION_TRANSITIONS",
    "A2ACeleryError",
    "Agent",
    "AuthRequired",
    "BrokerUnavailable",
    "ConfigError",
    "ContextSession",
    "ExecutionState",
    "ExecutionStateMachine",
    "Failed",
    "IllegalTransition",
    "InputRequired",
    "InvalidSaved",
    "RedisTaskEventStream",
    "RedisTaskStore",
    "Rejected",
    "SessionConflict",
    "SessionError",
    "Settings",
    "StoreUnavailable",
    "Transition",
    "Turn",
    "current_execution",
    "current_session",
    "current_turn",
]

__version__ = "0.1.0"
