"""The other side of A2A: for programs that talk to agents, and hear from them. See docs/client.md.

What receives webhooks is in ``receiver``.
"""

from .card_cache import CardCache
from .credentials import Credentials
from .failures import (
    AgentUnreachable,
    AnswerLost,
    AnswerUnreadable,
    CallRefused,
    DeadlineExceeded,
    NotConnected,
    NoTransport,
    RemoteError,
    TooManyRequests,
)
from .remote import RemoteAgent
from .result import Result, StopReason, input_requests, state_name, stop_reason_of
from .session import AgentSession, Content, Session

__all__ = [
    "AgentSession",
    "AgentUnreachable",
    "AnswerLost",
    "AnswerUnreadable",
    "CallRefused",
    "CardCache",
    "Content",
    "Credentials",
    "DeadlineExceeded",
    "NoTransport",
    "NotConnected",
    "RemoteAgent",
    "RemoteError",
    "Result",
    "Session",
    "StopReason",
    "TooManyRequests",
    "input_requests",
    "state_name",
    "stop_reason_of",
]
