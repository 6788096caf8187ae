"""Calls to remote agents as Celery tasks: ``call_task`` makes steps of canvases. See docs/calling-from-celery.md."""

from .errors import CallCanceled, CallEnded, CallFailed, CallInterrupted, CallRejected, CallTimedOut
from .remotes import Remote
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
