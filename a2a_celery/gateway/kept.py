"""Tasks wherever they are kept: in the store, and behind it in the archive, which has what has left the store.

The store is asked first: what leaves it is in the archive before. So whoever asks both, in this order, misses nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from a2a.types import ListTasksRequest, ListTasksResponse, Task, TaskState
from a2a.utils.errors import TaskNotCancelableError, UnsupportedOperationError

from ..archive import Archive, ArchivedPage, Filter
from ..lifecycle import is_terminal
from ..store import AsyncStore, Keys, Scope
from ..store.answers import Page
from ..store.keys import quoted
from ..store.listing import Asked, asked, response
from ..store.tasks import list_tasks, read_task
from .faults import not_found


@dataclass(frozen=True, slots=True)
class Kept:
    """A task, the number of its last event, and whether it is in the archive alone: then its log is gone."""

    task: Task
    version: int
    archived: bool = False


class KeptTasks:
    """Reads tasks. `archive` is None where ended tasks are forgotten after `retention` seconds."""

    def __init__(self, store: AsyncStore, keys: Keys, archive: Archive | None, retention: int) -> None:
        self._store = store
        self._keys = keys
        self._archive = archive
        self._retention = retention

    async def read(
        self,
        scope: Scope,
        task_id: str,
        *,
        history_length: int | None = None,
        artifacts: bool = True,
        whole: bool = True,
    ) -> Kept:
        """The task as it is now; a history_length of None is all. One that is not wanted `whole` asks no object store.

        Raises:
            TaskNotFoundError: there is none in `scope`.
            ArchiveUnavailable: it is not in the store, and the archive is away.
        """
        found = await self._store.run(
            read_task(self._keys, scope, task_id, history_length=history_length, artifacts=artifacts, whole=whole)
        )
        if found is not None:
            return Kept(*found)
        archived = None if self._archive is None else await self._archive.read(scope, task_id)
        if archived is None:
            raise not_found(task_id)
        return Kept(cut(archived.task, history_length, artifacts=artifacts), archived.version, archived=True)

    async def page(self, scope: Scope, params: ListTasksRequest) -> ListTasksResponse:
        """The page that `params` asks for, of both.

        A task is listed in one of the two: the step that takes it out of the store's lists moves the border, up to
        which the archive is asked.

        Raises: InvalidParamsError: the page token is not one of ours. ArchiveUnavailable: some of the tasks, or of
        their number, are in the archive, and it is away.
        """
        wanted = asked(params)
        page = await self._store.run(
            list_tasks(
                self._keys, scope, retention=self._retention, archived=self._archive is not None, **wanted.of_store()
            )
        )
        archived = await self._archived(scope, wanted, page)
        return response(wanted, page if archived is None else joined(page, archived, wanted.size))

    async def not_cancelable(self, scope: Scope, task_id: str) -> TaskNotCancelableError:
        """What a client is told whose task is not in the store (any more).

        Raises:
            TaskNotFoundError: there is none in the archive either.
        """
        kept = await self.read(scope, task_id, history_length=0, artifacts=False)
        return ended_already(task_id, kept.task.status.state)

    async def takes_no_more(self, scope: Scope, task_id: str) -> UnsupportedOperationError:
        """As `not_cancelable`, where a task that is not in the store was to be sent a message, or given a webhook."""
        kept = await self.read(scope, task_id, history_length=0, artifacts=False)
        return takes_no_more(task_id, kept.task.status.state)

    async def _archived(self, scope: Scope, wanted: Asked, page: Page) -> ArchivedPage | None:
        """None when there can be none: nothing has gone to the archive, or nothing of that age or state."""
        border = page.border_us
        if self._archive is None or border is None:
            return None
        if wanted.state is not None and not is_terminal(wanted.state):
            return None
        if wanted.not_before_us is not None and wanted.not_before_us > border:
            return None
        at = Filter(scope, border, wanted.context_id, wanted.state, wanted.not_before_us)
        newer = page.more and page.tasks and page.tasks[-1].status.timestamp.ToMicroseconds() > border
        found = await self._archive.page(
            at, size=0 if newer else wanted.size, cursor=wanted.cursor, artifacts=wanted.artifacts
        )
        for task in found.tasks:
            cut(task, wanted.history_length, artifacts=wanted.artifacts)
        return found


def joined(page: Page, archived: ArchivedPage, size: int) -> Page:
    """Both pages as one."""
    tasks = {task.id: task for task in (*archived.tasks, *page.tasks)}
    newest_first = sorted(tasks.values(), key=_place, reverse=True)
    for half in (page, archived):
        if half.more and half.tasks:  # it may have ended early, for its size: what is behind it is for the next page
            newest_first = [task for task in newest_first if _place(task) >= _place(half.tasks[-1])]
    more = page.more or archived.more or len(newest_first) > size
    return Page(newest_first[:size], page.total + archived.total, more)


def _place(task: Task) -> tuple[int, str]:
    return task.status.timestamp.ToMicroseconds(), quoted(task.id)


def cut(task: Task, history_length: int | None, *, artifacts: bool = True) -> Task:
    """`task` itself, with the newest of its history, and without artifacts, as the store would have read it."""
    if history_length is not None and history_length < len(task.history):
        del task.history[: len(task.history) - history_length]
    if not artifacts:
        task.ClearField("artifacts")
    return task


def ended_already(task_id: str, state: TaskState) -> TaskNotCancelableError:
    """What a client is told that cancels a task behind its end."""
    return TaskNotCancelableError(f"The task has ended already: {TaskState.Name(state)}", data={"taskId": task_id})


def takes_no_more(task_id: str, state: TaskState) -> UnsupportedOperationError:
    """What a client is told that sends a message to a task behind its end."""
    return UnsupportedOperationError(
        f"The task has ended ({TaskState.Name(state)}) and takes no more messages: send this one without a task id, "
        "with this task in referenceTaskIds",
        data={"taskId": task_id},
    )
