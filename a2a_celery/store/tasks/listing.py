"""ListTasks: conversion of a protocol request to a store query, and of the query's result to a response.

A page token is a position in the list. A task that changes between two pages moves to the front of the list, and is
therefore missing from the later pages. Each task that does not change appears exactly once.

Source: A2A specification 3.1.4.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from a2a.types import ListTasksRequest, ListTasksResponse, TaskState
from a2a.utils.constants import DEFAULT_LIST_TASKS_PAGE_SIZE
from a2a.utils.errors import InvalidParamsError
from a2a.utils.task import ListTasksCursor, decode_list_tasks_cursor, encode_list_tasks_cursor

from ...lifecycle.references import quote_key_part
from ..codec import Position
from .replies import Page

MAX_TOKEN_LENGTH = 1024
"""Maximum length of a page token."""

PAGE_BLOB_BYTES = 32 * 1024 * 1024
"""Total size of large parts, in bytes, after which a page ends."""

PAGE_BYTES = 8 * 1024 * 1024
"""Maximum total size, in bytes, of the stored tasks on a page. A larger task is returned on its own page."""


@dataclass(frozen=True, slots=True)
class ListQuery:
    """Parsed ListTasks request.

    Attributes:
        cursor: Status time in µs and quoted id of the last task on the previous page, or None for the first page.
    """

    size: int
    context_id: str
    state: TaskState | None
    not_before_us: int | None
    cursor: Position | None
    history_length: int | None
    artifacts: bool

    def of_store(self, blob_bytes: int = PAGE_BLOB_BYTES) -> dict[str, Any]:
        """Return the keyword arguments of `list_tasks` for this query.

        Args:
            blob_bytes: Bytes of large parts after which the page ends.
        """
        return {
            "page_size": self.size,
            "context_id": self.context_id,
            "state": self.state,
            "not_before_us": self.not_before_us,
            "cursor": self.cursor,
            "history_length": self.history_length,
            "artifacts": self.artifacts,
            "blob_bytes": blob_bytes,
            "max_bytes": PAGE_BYTES,
        }


def list_query(params: ListTasksRequest) -> ListQuery:
    """Parse a ListTasks request.

    Raises:
        InvalidParamsError: The page token is invalid.
    """
    updated_after = params.status_timestamp_after
    return ListQuery(
        size=params.page_size if params.HasField("page_size") else DEFAULT_LIST_TASKS_PAGE_SIZE,
        context_id=params.context_id,
        state=params.status or None,
        # rounded up, so that no status is older than the requested nanosecond
        not_before_us=-(-updated_after.ToNanoseconds() // 1000) if params.HasField("status_timestamp_after") else None,
        cursor=_cursor(params.page_token),
        history_length=params.history_length if params.HasField("history_length") else None,
        artifacts=params.include_artifacts,
    )


def response(query: ListQuery, page: Page) -> ListTasksResponse:
    """Return the ListTasks response for `page`, without the tasks."""
    token = ""
    if page.more and page.tasks:
        last = page.tasks[-1]
        token = position_token(last.status.timestamp.ToMicroseconds(), last.id)
    return ListTasksResponse(next_page_token=token, page_size=query.size, total_size=page.total)


def position_token(at_us: int, task_id: str) -> str:
    """Return the position of a task in a list, newest status first, as an opaque text."""
    return encode_list_tasks_cursor(ListTasksCursor(at_us * 1000, task_id))


def position_of(token: str) -> Position | None:
    """Return the position in a `position_token` (time in µs, quoted id), or None if `token` is invalid."""
    if not token.isascii() or len(token) > MAX_TOKEN_LENGTH:
        return None
    cursor = decode_list_tasks_cursor(token)
    if cursor is None or cursor.timestamp_ns is None or not 0 <= cursor.timestamp_ns < 2**63:
        return None
    try:
        return Position(cursor.timestamp_ns // 1000, quote_key_part(cursor.task_id))
    except UnicodeEncodeError:  # the id contains a surrogate
        return None


def _cursor(token: str) -> Position | None:
    if not token:
        return None
    if (position := position_of(token)) is None:
        rule = "Not a page token of this service: send nextPageToken of the previous page unchanged, or omit it."
        raise InvalidParamsError("Invalid page token", data={"errors": [{"field": "page_token", "message": rule}]})
    return position
