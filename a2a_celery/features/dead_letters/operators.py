"""Operations on dead letters in the operator's API."""

from __future__ import annotations

from typing import Any

from ...gateway.operator import audit
from ...gateway.operator.operator_request import OperatorRequest
from ...gateway.operator.stored_tasks import page_of_list
from ...gateway.operator.task_texts import add_texts
from ...lifecycle.refusals import Refusal
from ...operations.limits import error_of
from ...store.admin.metrics import read_metrics
from ...store.admin.scan import scan_list
from ...telemetry.names import Action
from .requeue import requeue


async def list_dead_letters(request: OperatorRequest) -> dict[str, Any]:
    """Return a page of the dead letters of all owners. The operator's own tasks have texts."""
    page = await page_of_list(request.store, request.keys, request.keys.resubmittable, request.cursor())
    await add_texts(request.store, request.keys, page["tasks"], request.owns)
    return page


async def requeue_dead_letter(request: OperatorRequest) -> dict[str, Any]:
    """Create a new task from the dead letter in the path, and publish its run. Concurrent calls create one task.

    Returns:
        The ids of the new task and of the dead letter, and whether an earlier call has created the task.

    Raises:
        TaskNotFoundError: There is no such task.
        UnsupportedOperationError: The task is not a dead letter, or this gateway does not have its agent.
    """
    requeued = await _requeue(request, request.task_id)
    if isinstance(requeued, Refusal):
        raise error_of(requeued)
    return requeued


async def requeue_page(request: OperatorRequest) -> dict[str, Any]:
    """Requeue a page of the dead letters of all owners.

    Returns:
        The result for each dead letter, the cursor of the next page, and the number of remaining dead letters. The
        result of a dead letter that was not requeued has the reason as `error`.
    """
    store, keys = request.store, request.keys
    page = await store.run(scan_list(keys, keys.resubmittable, cursor=request.cursor()))
    results = []
    for task_id in dict.fromkeys(task.ref.task_id for task in page.tasks):
        requeued = await _requeue(request, task_id)
        if isinstance(requeued, Refusal):
            requeued = {"requeuedFrom": task_id, "error": error_of(requeued).message}
        results.append(requeued)
    remaining = (await store.run(read_metrics(keys))).resubmittable
    return {"results": results, "next": page.cursor, "remaining": remaining}


async def _requeue(request: OperatorRequest, task_id: str) -> dict[str, Any] | Refusal:
    target, requeued = f"task {task_id}", await requeue(request.service, task_id)
    if isinstance(requeued, Refusal):
        audit.record(Action.TASK_REQUEUED, request.operator, target, audit.refused(requeued), requeued_from=task_id)
        return requeued
    result = "before" if requeued.was_requeued_before else "requeued"
    fields = {"agent": requeued.agent or None, "requeued_from": task_id}
    audit.record(Action.TASK_REQUEUED, request.operator, target, result, new_task=requeued.task_id, **fields)
    return {"task": requeued.task_id, "requeuedFrom": task_id, "before": requeued.was_requeued_before}
