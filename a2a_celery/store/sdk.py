"""Implementations of the A2A SDK's store interfaces, for the SDK's own request handler or another handler::

    DefaultRequestHandlerV2(executor, RedisTaskStore(store), card, event_stream=RedisTaskEventStream(store, listener))

The SDK's single-process engine then has a shared store with replayable logs. The engine still executes agents in its
own process.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence

from a2a.server.cluster import (
    ConcurrentTaskModificationError,
    StoredTask,
    TaskEventStream,
    TaskVersion,
    VersionedEvent,
    VersionedTaskStore,
)
from a2a.server.context import ServerCallContext
from a2a.server.owner_resolver import resolve_user_scope
from a2a.types import (
    ListTasksRequest,
    ListTasksResponse,
    Task,
    TaskArtifactUpdateEvent,
    TaskStatusUpdateEvent,
)

from ..integrations.a2a_sdk import version_reader
from ..lifecycle import Event, EventId, is_terminal
from ..lifecycle.states import CANCELED
from .client.connection import AsyncStore
from .codec import event_arguments, require_blobs_retained, task_arguments
from .keys import Keys, Scope
from .log.pages import read_log
from .log.pubsub import LogFollower, PubSubListener
from .operation import Argument, Operation, script
from .tasks.commands import read_task
from .tasks.listing import list_page

WEEK = 7 * 24 * 3600

version_number = version_reader(TaskVersion)


class RedisTaskStore(VersionedTaskStore):
    """Implementation of `VersionedTaskStore` on Redis or Valkey, with compare-and-swap on the version.

    A change and its event are written atomically.

    Args:
        store: Store client.
        keys: Keys of the deployment, or None for the default prefix.
        retention: Seconds after which an ended task expires.
        owner_resolver: Function that returns the owner of tasks from a call context.
    """

    def __init__(
        self,
        store: AsyncStore,
        keys: Keys | None = None,
        *,
        retention: int = WEEK,
        owner_resolver: Callable[[ServerCallContext], str] = resolve_user_scope,
    ) -> None:
        self._store = store
        self._keys = keys or Keys()
        self._retention = retention
        self._owner_of = owner_resolver

    async def save(
        self,
        task: Task,
        *,
        event: Event | None = None,
        prev: Task | None = None,
        prev_version: TaskVersion = TaskVersion.MISSING,
        context: ServerCallContext,
    ) -> TaskVersion:
        """Save a task; see `VersionedTaskStore.save`. `prev` is ignored, because the event describes the change.

        Raises:
            ConcurrentTaskModificationError: The stored version is not `prev_version`, or the stored task has ended or
                belongs to another owner.
        """
        version = await self._store.run(
            _save_task(
                self._keys,
                Scope(owner=self._owner_of(context)),
                task,
                event=event,
                prev_version=prev_version,
                retention=self._retention,
            )
        )
        if version is None:
            raise ConcurrentTaskModificationError(task.id)
        return TaskVersion(version)

    async def get(self, task_id: str, context: ServerCallContext) -> StoredTask | None:
        """Return the caller's task with its version, or None if the caller has no such task."""
        snapshot = await self._store.run(read_task(self._keys, Scope(owner=self._owner_of(context)), task_id))
        return None if snapshot is None else StoredTask(snapshot[0], TaskVersion(snapshot[1].version))

    async def list(self, params: ListTasksRequest, context: ServerCallContext) -> ListTasksResponse:
        """Return a page of the caller's tasks, newest status first.

        Raises:
            InvalidParamsError: The page token is invalid.
        """
        scope = Scope(owner=self._owner_of(context))
        return await list_page(self._store, self._keys, scope, params, retention=self._retention)

    async def delete(self, task_id: str, context: ServerCallContext) -> None:
        """Delete the caller's task and its log, if the task exists."""
        scope = Scope(owner=self._owner_of(context))
        names = self._keys.task(task_id)
        await self._store.run(Operation(script("delete_task"), names, [str(scope)], lambda _: None))


class RedisTaskEventStream(TaskEventStream):
    """Implementation of `TaskEventStream` that replays and follows the log of a task in any process.

    Args:
        store: Store client.
        listener: Pub/sub listener of the process.
        keys: Keys of the deployment, or None for the default prefix.
    """

    def __init__(self, store: AsyncStore, listener: PubSubListener, keys: Keys | None = None) -> None:
        self._follower = LogFollower(store, keys or Keys(), listener)

    async def publish(self, task_id: str, event: VersionedEvent) -> None:
        """Do nothing, because `RedisTaskStore.save` has written the event and notified the followers."""

    async def subscribe(self, task_id: str, *, after: TaskVersion) -> AsyncGenerator[VersionedEvent, None]:
        """Yield the events of a task after the version `after`, up to and including the terminal event."""
        start = version_number(after)
        now = await self._follower.store.run(read_log(self._follower.keys, task_id, start, limit=1))
        if is_terminal(now.state) and now.version <= start:
            return
        async for page in self._follower.pages(task_id, EventId(start)):
            for entry in page.entries:
                yield VersionedEvent(entry.event, TaskVersion(entry.version))
            if is_terminal(page.state) and page.entries[-1].version == page.version:
                return

    async def destroy(self, task_id: str) -> None:
        """Do nothing, because the log expires with the task."""


def _save_task(
    keys: Keys, scope: Scope, task: Task, *, event: Event | None, prev_version: TaskVersion, retention: int
) -> Operation[int | None]:
    """Save a task. A change to CANCELED overwrites any version of a live task.

    Returns:
        The new version, or None if `prev_version` is not the stored version, or if the stored task has ended or belongs
        to another scope.
    """
    arguments: list[Argument] = [
        task.id,
        task.context_id,
        str(scope),
        keys.scope_index(scope),
        keys.context_index(scope, task.context_id),
        retention,
        keys.leases,
        keys.dispatch,
        version_number(prev_version),
        int(task.status.state == CANCELED),
    ]
    # The first entry of a log is the complete task, regardless of the event.
    if isinstance(event, TaskStatusUpdateEvent | TaskArtifactUpdateEvent) and not prev_version.is_missing:
        arguments += ["event", *event_arguments([event])]
    else:
        arguments += ["task", *task_arguments(task)]

    def parse(reply: Sequence[bytes]) -> int | None:
        require_blobs_retained(reply)
        return int(reply[1]) if reply[0] == b"saved" else None

    return Operation(script("save_task"), keys.task(task.id), arguments, parse)
