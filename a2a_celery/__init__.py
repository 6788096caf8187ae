"""A2A on a Celery fleet.

The path of one message: the gateway (``gateway``) stores it as a task with its first run (``store``) and publishes a
Celery task (``dispatch``); a worker claims the run and lets the agent work (``execution``), whose events go into the
task's log; every stream, on any gateway, reads that log. The watcher (``watcher``) looks after what others dropped.
What a task may become is decided in ``lifecycle``.
"""

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
