"""Reads of tasks, first from the store, then from the archive.

Tasks are archived before they are removed from the store, so a reader always finds a task in the store or in the
archive.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from a2a.types import ListTasksRequest, ListTasksResponse, Task
from a2a.utils.errors import A2AError

from ...archive import Archive, ArchivedPage, Filter
from ...lifecycle import EventId, is_terminal
from ...lifecycle.references import Scope, quote_key_part
from ...lifecycle.refusals import Reason, Refusal
from ...operations.errors import not_found
from ...store import AsyncStore, Keys
from ...store.codec import omit_contents
from ...store.tasks.commands import list_tasks, read_task
from ...store.tasks.listing import ListQuery, list_query, response
from ...store.tasks.replies import Page
from ..gate import Gate, is_large


@dataclass(frozen=True, slots=True)
class StoredTask:
    """Task from the store or the archive.

    Attributes:
        task: The task.
        newest: Id of the task's newest event.
        archived: True if the task is only in the archive and therefore has no log.
    """

    task: Task
    newest: EventId
    archived: bool = False


class TaskReader:
    """Reader of tasks from the store, then from the archive.

    Without an `archive`, ended tasks are deleted after `retention` seconds.
    """

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
        resolve_blobs: bool = True,
    ) -> StoredTask:
        """Return the current task.

        Args:
            scope: Scope that must contain the task.
            task_id: Id of the task.
            history_length: Number of history messages to return, or None for all.
            artifacts: False to omit the artifacts.
            resolve_blobs: False to leave blob references unresolved, which saves a read from the object store.

        Raises:
            TaskNotFoundError: There is no such task in `scope`.
            ArchiveUnavailable: The task is not in the store, and the archive is unavailable.
        """
        snapshot = await self._store.run(
            read_task(
                self._keys,
                scope,
                task_id,
                history_length=history_length,
                artifacts=artifacts,
                resolve_blobs=resolve_blobs,
            )
        )
        if snapshot is not None:
            return StoredTask(*snapshot)
        archived_task = None if self._archive is None else await self._archive.read(scope, task_id)
        if archived_task is None:
            raise not_found(task_id)
        omit_contents(archived_task.task, history_length, artifacts=artifacts)
        return StoredTask(archived_task.task, EventId(archived_task.version), archived=True)

    async def page(self, scope: Scope, params: ListTasksRequest) -> ListTasksResponse:
        """Return the requested page of tasks from the store and the archive.

        No task is listed twice, because the script that removes a task from the store's lists also advances the time up
        to which the archive is read.

        Raises:
            InvalidParamsError: The page token is invalid.
            ArchiveUnavailable: The page or the total needs the archive, and the archive is unavailable.
        """
        query = list_query(params)
        page = await self._store.run(
            list_tasks(
                self._keys, scope, retention=self._retention, archived=self._archive is not None, **query.of_store()
            )
        )
        archive_page = await self._read_archive_page(scope, query, page)
        if archive_page is not None:
            page = join_pages(page, archive_page, query.size)
        return await response_with_tasks(query, page)

    async def error_of(
        self, refusal: Refusal, scope: Scope, gate: Gate, *, archived: Reason = Reason.ENDED
    ) -> A2AError:
        """Return the error of a refusal for the client. `archived` is the reason if the task is in the archive instead
        of the store.

        Raises:
            TaskNotFoundError: The task is in neither.
        """
        if refusal.reason is Reason.MISSING:
            refusal = await self._archived(refusal, scope, archived)
        return gate.error_of(scope.agent, refusal)

    async def _archived(self, refusal: Refusal, scope: Scope, reason: Reason) -> Refusal:
        stored_task = await self.read(scope, refusal.task_id, history_length=0, artifacts=False)
        return Refusal(reason, refusal.task_id, {"state": stored_task.task.status.state})

    async def _read_archive_page(self, scope: Scope, query: ListQuery, page: Page) -> ArchivedPage | None:
        """Return the archive's part of a page, or None if no archived task can match the query."""
        border = page.border_us
        if self._archive is None or border is None:
            return None
        if query.state is not None and not is_terminal(query.state):
            return None
        if query.not_before_us is not None and query.not_before_us > border:
            return None
        at = Filter(scope, border, query.context_id, query.state, query.not_before_us)
        newer = page.more and page.tasks and page.tasks[-1].status.timestamp.ToMicroseconds() > border
        archive_page = await self._archive.page(
            at, size=0 if newer else query.size, cursor=query.cursor, artifacts=query.artifacts
        )
        for task in archive_page.tasks:
            omit_contents(task, query.history_length, artifacts=query.artifacts)
        return archive_page


async def response_with_tasks(query: ListQuery, page: Page) -> ListTasksResponse:
    """Return the response for a page. The event loop runs other work after each large task, because protobuf copies the
    tasks."""
    list_response = response(query, page)
    for task in page.tasks:
        list_response.tasks.append(task)
        if is_large(task):
            await asyncio.sleep(0)
    return list_response


def join_pages(page: Page, archive_page: ArchivedPage, size: int) -> Page:
    """Return one page with the tasks of both pages, newest first."""
    tasks = {task.id: task for task in (*archive_page.tasks, *page.tasks)}
    newest_first = sorted(tasks.values(), key=_place, reverse=True)
    for half in (page, archive_page):
        if half.more and half.tasks:  # tasks after the last task of this half belong to its next page
            newest_first = [task for task in newest_first if _place(task) >= _place(half.tasks[-1])]
    more = page.more or archive_page.more or len(newest_first) > size
    return Page(newest_first[:size], page.total + archive_page.total, more)


def _place(task: Task) -> tuple[int, str]:
    return task.status.timestamp.ToMicroseconds(), quote_key_part(task.id)
