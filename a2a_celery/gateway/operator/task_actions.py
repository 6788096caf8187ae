"""Actions of operators on tasks of any owner, as with ``celery a2a cancel`` and ``signal``. Each action leaves a line
in the log with the name of the operator."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from a2a.types import TaskState

from ...lifecycle.outcomes import CANCELED_BY_OPERATOR
from ...lifecycle.refusals import Reason, Refusal
from ...lifecycle.signals import Sender
from ...operations.errors import MAX_ID_LENGTH, invalid, not_found
from ...operations.limits import error_of
from ...operations.signals import Signal
from ...store.runs.release import read_activities
from ...store.tasks.replies import CanceledNow
from ...telemetry.names import Action
from . import audit
from .operator_request import OperatorRequest

MAX_TASKS = 100
"""Maximum number of tasks that one request cancels."""


async def cancel_task(request: OperatorRequest) -> dict[str, Any]:
    """Cancel the task in the path, which may belong to any owner.

    Raises:
        TaskNotFoundError: The store has no such task.
    """
    result = await _cancel(request, request.task_id)
    if result["result"] == "missing":
        raise not_found(request.task_id)
    return result


async def cancel_tasks(request: OperatorRequest) -> dict[str, Any]:
    """Cancel the tasks in the body. Return the results in the order of the tasks.

    Raises:
        InvalidParamsError: The body has no list of 1 to `MAX_TASKS` ids.
    """
    return {"results": [await _cancel(request, task_id) for task_id in _task_ids(await request.body())]}


async def signal_task(request: OperatorRequest) -> dict[str, Any]:
    """Send the signal in the body to the task in the path, and publish a run that the signal resumes.

    Returns:
        The id of the task, and whether a run waited for the signal.

    Raises:
        InvalidParamsError: The body is not a signal.
        TaskNotFoundError: The store has no such task.
        UnsupportedOperationError: The task cannot receive the signal.
    """
    task_id, signal = request.task_id, Signal.from_body(await request.body(), Sender.OPERATOR)
    steps = await request.store.run(read_activities(request.keys, task_id))
    fields = {"task": task_id, "signal": signal.name, "agent": steps.agent if steps else None}
    answer = await request.service.signal(task_id, signal)
    result = audit.refused(answer) if isinstance(answer, Refusal) else "resumed" if answer.has_resumed else "stored"
    audit.record(Action.SIGNAL_SENT, request.operator, f"task {task_id}", result, **fields)
    if isinstance(answer, Refusal):
        raise error_of(answer)
    return {"task": task_id, "result": result}


async def _cancel(request: OperatorRequest, task_id: str) -> dict[str, Any]:
    """Cancel a task, or ask its worker to cancel the agent. The call does not wait for the agent.

    Returns:
        The id of the task and the ``result``: "canceled", "requested" (the worker stops the agent), "ended" (with the
        state of the task) or "missing".
    """
    steps = await request.store.run(read_activities(request.keys, task_id))
    fields: dict[str, Any] = {"result": "missing"}
    if steps is not None:
        match await request.service.cancel(steps.scope, task_id, steps.context_id, text=CANCELED_BY_OPERATOR):
            case Refusal(Reason.MISSING):
                pass
            case Refusal(data=data):
                fields = {"result": "ended", "state": TaskState.Name(data["state"])}
            case CanceledNow():
                fields = {"result": "canceled"}
            case _:
                fields = {"result": "requested"}
    agent, target = steps.agent if steps is not None else None, f"task {task_id}"
    audit.record(Action.CANCEL_REQUESTED, request.operator, target, fields["result"], agent=agent, task=task_id)
    return {"task": task_id} | fields


def _task_ids(body: Mapping[str, Any]) -> Iterable[str]:
    """Return the ids in ``tasks``, each once.

    Raises:
        InvalidParamsError: The body has another field, or no list of 1 to `MAX_TASKS` ids.
    """
    if unknown := next((field for field in body if field != "tasks"), None):
        raise invalid(unknown[:64], "Unknown: the body has only tasks.")
    ids = body.get("tasks")
    if not (isinstance(ids, list) and 1 <= len(ids) <= MAX_TASKS):
        raise invalid("tasks", f"Send a list of 1 to {MAX_TASKS} ids of tasks.")
    if not all(isinstance(task_id, str) and 0 < len(task_id) <= MAX_ID_LENGTH for task_id in ids):
        raise invalid("tasks", f"Each id is a string of 1 to {MAX_ID_LENGTH} characters.")
    return dict.fromkeys(ids)
