"""Metadata with which the message of an agent names the agent's task as the parent of the new task."""

from __future__ import annotations

from a2a.types import Message

from .own_metadata import CALLED_BY_PARENT, CANCEL_WITH_PARENT, NAMESPACE, PARENT_TASK_ID


def name_parent(message: Message, parent_id: str, *, cancel: bool = True, is_called: bool = False) -> None:
    """Add the id of the parent task to the metadata of `message`, which creates a child task.

    Args:
        message: Message to change. A message that continues a task is left unchanged.
        parent_id: Id of the parent, or "" if there is no parent.
        cancel: True if the child is cancelled with its parent.
        is_called: True if the parent uses the child again when the parent is resubmitted.
    """
    if not parent_id or message.task_id:
        return
    message.metadata[NAMESPACE + PARENT_TASK_ID] = parent_id
    if not cancel:
        message.metadata[NAMESPACE + CANCEL_WITH_PARENT] = False
    if is_called:
        message.metadata[NAMESPACE + CALLED_BY_PARENT] = True


def parent_named_in(message: Message) -> tuple[str, bool, bool]:
    """Return the parent's id from the metadata of `message`, or "" if there is none, whether the child is cancelled
    with its parent, and whether a resubmitted parent uses the child again."""
    fields = message.metadata.fields
    parent_id = fields[NAMESPACE + PARENT_TASK_ID].string_value if NAMESPACE + PARENT_TASK_ID in fields else ""
    name = NAMESPACE + CANCEL_WITH_PARENT
    cancels = name not in fields or not fields[name].HasField("bool_value") or fields[name].bool_value
    called = NAMESPACE + CALLED_BY_PARENT
    return parent_id, cancels, called in fields and fields[called].bool_value


def remove_parent(message: Message) -> None:
    """Remove the metadata that `name_parent` added to `message`."""
    for name in (PARENT_TASK_ID, CANCEL_WITH_PARENT, CALLED_BY_PARENT):
        message.metadata.fields.pop(NAMESPACE + name, None)
    if not message.metadata.fields:
        message.ClearField("metadata")
