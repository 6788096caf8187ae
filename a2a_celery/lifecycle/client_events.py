"""Events in the form that clients receive."""

from __future__ import annotations

from a2a.types import Message, TaskStatusUpdateEvent

from .events import Event, EventKind, LogEntry, kind_of
from .fold import message_status


def client_event(entry: LogEntry, task_id: str, context_id: str) -> Event | None:
    """Return the event of `entry` in the form that clients receive, or None for an event that is not sent."""
    match kind_of(entry.event):
        case EventKind.CLIENT_MESSAGE:
            return None  # the sender has the message, and other subscribers find it in the history
        case EventKind.AGENT_MESSAGE:
            assert isinstance(entry.event, Message)
            message = Message()
            message.CopyFrom(entry.event)
            message.task_id = task_id
            status = message_status(message, entry.recorded_us)
            return TaskStatusUpdateEvent(task_id=task_id, context_id=context_id, status=status)
        case _:
            return entry.event
