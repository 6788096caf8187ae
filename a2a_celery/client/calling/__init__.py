"""Calls to remote agents as steps of Celery canvases; see `call_task` and docs/calling-from-celery.md."""

from .client_loop import Remote
from .content import CallCanceled, CallEnded, CallFailed, CallInterrupted, CallRejected, CallTimedOut
from .task import CallTask, call_task
from .webhook import Webhook

__all__ = [
    "CallCanceled",
    "CallEnded",
    "CallFailed",
    "CallInterrupted",
    "CallRejected",
    "CallTask",
    "CallTimedOut",
    "Remote",
    "Webhook",
    "call_task",
]
