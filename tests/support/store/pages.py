"""Pages of ListTasks from the store alone."""

from __future__ import annotations

from a2a.types import ListTasksRequest, ListTasksResponse

from a2a_celery.lifecycle.references import Scope
from a2a_celery.store import AsyncStore, Keys
from a2a_celery.store.tasks.commands import list_tasks
from a2a_celery.store.tasks.listing import PAGE_BLOB_BYTES, list_query, response


async def list_page(
    store: AsyncStore,
    keys: Keys,
    scope: Scope,
    params: ListTasksRequest,
    *,
    retention: int,
    blob_bytes: int = PAGE_BLOB_BYTES,
) -> ListTasksResponse:
    """Return the page that `params` requests, like the gateway's `TaskReader` without an archive."""
    query = list_query(params)
    page = await store.run(list_tasks(keys, scope, retention=retention, **query.of_store(blob_bytes)))
    list_response = response(query, page)
    list_response.tasks.extend(page.tasks)
    return list_response
