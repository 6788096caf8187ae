"""Child tasks: the tasks that the code of a run starts with other agents. Cancelling the run cancels its child tasks.

``client`` registers a child task when the task starts, and unregisters the task when it ends. ``execution`` cancels the
registered child tasks when the run is cancelled or retried. The metadata of the message that creates a child task
contains the id of the parent; see `name_parent`. The store records the parent; see ``store.tasks.family``.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING

from .lifecycle.own_metadata import CALLED_BY_PARENT, CANCEL_WITH_PARENT, NAMESPACE, PARENT_TASK_ID

if TYPE_CHECKING:  # a process that only registers agents does not import the SDK
    from a2a.types import Message

logger = logging.getLogger(__name__)

CANCELED_BY = "canceledBy"
"""Metadata key of a CancelTask request. Its value is `BY_PARENT` if the parent of the task sends the request. Requests
of clients do not have the key."""

BY_PARENT = "parent"

_under_way: set[asyncio.Task[None]] = set()
"""Cancel requests in flight. The set keeps the tasks alive, because asyncio holds only weak references."""


class ChildTasks:
    """Child tasks of a run. Thread-safe, except for `cancel_all`.

    Attributes:
        is_called: True if a resubmitted parent uses the tasks that are added again.
        run_name: Celery id of the run.
        trace_of_run: Function that returns the stored trace headers of the run.
    """

    __slots__ = ("_cancels", "run_name", "trace_of_run")
    is_called = False

    def __init__(self, run_name: str, trace_of_run: Callable[[], Mapping[str, str]] = dict) -> None:
        self.run_name = run_name
        self.trace_of_run = trace_of_run
        self._cancels: dict[str, Callable[[], Awaitable[object]]] = {}

    @property
    def parent_id(self) -> str:
        """Id of the run's task, which is the parent of the child tasks."""
        return parent_of_root(self.run_name)

    def add(self, name: str, cancel: Callable[[], Awaitable[object]]) -> None:
        """Register the child task `name` and the function that cancels it, which may be called on another event
        loop."""
        self._cancels[name] = cancel

    def remove(self, name: str) -> None:
        """Unregister the task `name`, which has ended. An unknown name is ignored."""
        self._cancels.pop(name, None)

    def surviving_retries(self) -> ChildTasks:
        """Return a view of the child tasks. A retry of the run does not cancel the tasks that are added to the view."""
        return _SurvivingTasks(self)

    def cancel_all(self, *, is_retried: bool = False) -> None:
        """Start cancelling the tasks on the running loop. Failures are logged. If the run is retried, tasks that
        survive retries are left running."""
        cancels, self._cancels = self._cancels, {}
        if is_retried:
            cancels = {name: cancel for name, cancel in cancels.items() if not name.startswith(SURVIVING)}
        for name, cancel in cancels.items():
            sending = asyncio.create_task(_cancel(name, cancel), name=f"a2a-cancel-{name}")
            _under_way.add(sending)
            sending.add_done_callback(_under_way.discard)


SURVIVING = "durable "
"""Prefix of the names of tasks that survive a retry of the run."""


class _SurvivingTasks(ChildTasks):
    """View of the child tasks of a run. Tasks that are added to the view survive a retry of the run."""

    __slots__ = ("_all",)
    is_called = True

    def __init__(self, children: ChildTasks) -> None:
        super().__init__(children.run_name, children.trace_of_run)
        self._all = children

    def add(self, name: str, cancel: Callable[[], Awaitable[object]]) -> None:
        self._all.add(SURVIVING + name, cancel)

    def remove(self, name: str) -> None:
        self._all.remove(SURVIVING + name)


async def _cancel(name: str, cancel: Callable[[], Awaitable[object]]) -> None:
    try:
        await cancel()
    except Exception as e:
        logger.warning("%s was not cancelled with its parent: %r", name, e)


_RUN_NAME = re.compile(r"(.+)\.[0-9]+", re.DOTALL)


def parent_of_root(root_id: object) -> str:
    """Return the id of the A2A task whose run is the root of a canvas, or "" if the root is not a run."""
    match = _RUN_NAME.fullmatch(root_id) if isinstance(root_id, str) else None
    return match[1] if match else ""


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


CURRENT_CHILDREN: ContextVar[ChildTasks | None] = ContextVar("a2a_celery_child_tasks", default=None)
"""Child tasks of the run to which the current code belongs, or None outside of a run."""
