"""Client that calls A2A agents, follows their tasks and answers their questions. See docs/client.md.

The receiver of webhooks is ``a2a_celery.client.receiver``.
"""

from .connection.card_cache import CardCache
from .connection.transports import Credentials
from .errors import (
    AgentUnreachable,
    CallRefused,
    DeadlineExceeded,
    InvalidResponse,
    NotConnected,
    NoTransport,
    RemoteError,
    ResponseLost,
    TaskNotCompleted,
    TooManyRequests,
)
from .input_request import AnswerField, AnswerRefused, InputRequest
from .remote_agent import RemoteAgent
from .result import Result, StopReason, input_requests, state_name, stop_reason_of
from .session import AgentSession, Content, Session
from .text_stream import TextPiece

__all__ = [
    "AgentSession",
    "AgentUnreachable",
    "AnswerField",
    "AnswerRefused",
    "CallRefused",
    "CardCache",
    "Content",
    "Credentials",
    "DeadlineExceeded",
    "InputRequest",
    "InvalidResponse",
    "NoTransport",
    "NotConnected",
    "RemoteAgent",
    "RemoteError",
    "ResponseLost",
    "Result",
    "Session",
    "StopReason",
    "TaskNotCompleted",
    "TextPiece",
    "TooManyRequests",
    "input_requests",
    "state_name",
    "stop_reason_of",
]
