"""ListTasks: from the protocol's request to the store's, and back; the page token is a position, not a promise.

Source: A2A specification 3.1.4.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from a2a.types import ListTasksRequest, ListTasksResponse, TaskState
from a2a.utils.constants import DEFAULT_LIST_TASKS_PAGE_SIZE
from a2a.utils.errors import InvalidParamsError
from a2a.utils.task import ListTasksCursor, decode_list_tasks_cursor, encode_list_tasks_cursor

from ..client.connection import AsyncStore
from ..keys import Keys, Scope, quoted
from .commands import list_tasks
from .results import Page

PAGE_BLOB_BYTES = 32 * 1024 * 1024
"""Behind so many bytes of large parts a page ends, with fewer tasks than it may have."""

PAGE_BYTES = 8 * 1024 * 1024
"""Bytes of tasks that a page has at most, by their sizes in the store; one larger task is a page by itself."""


@dataclass(frozen=True, slots=True)
class ListQuery:
    """What a request asks for. `cursor` is the µs of the status, and the id, quoted, of the last task that was seen."""

    size: int
    context_id: str
    state: TaskState | None
    not_before_us: int | None
    cursor: tuple[int, str] | None
    history_length: int | None
    artifacts: bool

    def of_store(self) -> dict[str, Any]:
        """As `list_tasks` takes it."""
        return {
            "page_size": self.size,
            "context_id": self.context_id,
            "state": self.state,
            "not_before_us": self.not_before_us,
            "cursor": self.cursor,
            "history_length": self.history_length,
            "artifacts": self.artifacts,
            "blob_bytes": PAGE_BLOB_BYTES,
            "max_bytes": PAGE_BYTES,
        }


async def list_page(
    store: AsyncStore, keys: Keys, scope: Scope, params: ListTasksRequest, *, retention: int
) -> ListTasksResponse:
    """The page that `params` asks for.

    A task that changes while a client turns pages moves to the front, where pages already read don't show it again;
    tasks that don't change are seen exactly once.

    Raises:
        InvalidParamsError: the page token is not one of ours.
    """
    wanted = asked(params)
    return response(wanted, await store.run(list_tasks(keys, scope, retention=retention, **wanted.of_store())))


def asked(params: ListTasksRequest) -> ListQuery:
    """The request, read.

    Raises:
        InvalidParamsError: the page token is not one of ours.
    """
    after = params.status_timestamp_after
    return ListQuery(
        size=params.page_size if params.HasField("page_size") else DEFAULT_LIST_TASKS_PAGE_SIZE,
        context_id=params.context_id,
        state=params.status or None,
        # rounded up: a status at least as new as the given nanosecond
        not_before_us=-(-after.ToNanoseconds() // 1000) if params.HasField("status_timestamp_after") else None,
        cursor=_position(params.page_token),
        history_length=params.history_length if params.HasField("history_length") else None,
        artifacts=params.include_artifacts,
    )


def response(wanted: ListQuery, page: Page) -> ListTasksResponse:
    """A page, as an answer."""
    token = ""
    if page.more and page.tasks:
        last = page.tasks[-1]
        token = encode_list_tasks_cursor(ListTasksCursor(last.status.timestamp.ToNanoseconds(), last.id))
    return ListTasksResponse(tasks=page.tasks, next_page_token=token, page_size=wanted.size, total_size=page.total)


def _position(token: str) -> tuple[int, str] | None:
    if not token:
        return None
    cursor = None
    if token.isascii():
        cursor = decode_list_tasks_cursor(token)
    if cursor is None or cursor.timestamp_ns is None or not 0 <= cursor.timestamp_ns < 2**63:
        rule = "Not a page token of this service: pass nextPageToken of the page before, unchanged, or leave it out."
        raise InvalidParamsError("Invalid page token", data={"errors": [{"field": "page_token", "message": rule}]})
    return cursor.timestamp_ns // 1000, quoted(cursor.task_id)
