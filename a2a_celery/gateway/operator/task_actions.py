"""Actions of operators on tasks of any owner, as with ``celery a2a cancel``, ``signal`` and ``requeue``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from a2a.types import TaskState

from ...lifecycle.outcomes import CANCELED_BY_OPERATOR
from ...lifecycle.refusals import Reason, Refusal
from ...lifecycle.signals import Sender
from ...operations.errors import MAX_ID_LENGTH, invalid
from ...operations.limits import error_of
from ...operations.service import TaskService
from ...operations.signals import Signal
from ...store.admin.metrics import read_metrics
from ...store.admin.scan import scan_list
from ...store.runs.release import read_steps
from ...store.tasks.replies import CanceledNow
from ...telemetry.names import Action
from . import audit

MAX_TASKS = 100
"""Maximum number of tasks that one request cancels."""


class TaskActions:
    """Cancellation of tasks, signals to tasks and requeuing of dead letters, for the operator's API. Each action leaves
    a line in the log with the name of the operator."""

    def __init__(self, service: TaskService) -> None:
        self._service = service
        self._store = service.store
        self._keys = service.keys

    async def cancel(self, task_id: str, operator: str) -> dict[str, Any]:
        """Cancel a task, or ask its worker to cancel the agent. The call does not wait for the agent.

        Returns:
            The id of the task and the ``result``: "canceled", "requested" (the worker stops the agent), "ended" (with
            the state of the task) or "missing".
        """
        steps = await self._store.run(read_steps(self._keys, task_id))
        fields: dict[str, Any] = {"result": "missing"}
        if steps is not None:
            match await self._service.cancel(steps.scope, task_id, steps.context_id, text=CANCELED_BY_OPERATOR):
                case Refusal(Reason.MISSING):
                    pass
                case Refusal(data=data):
                    fields = {"result": "ended", "state": TaskState.Name(data["state"])}
                case CanceledNow():
                    fields = {"result": "canceled"}
                case _:
                    fields = {"result": "requested"}
        agent = steps.agent if steps is not None else None
        audit.record(Action.CANCEL_REQUESTED, operator, f"task {task_id}", fields["result"], agent=agent, task=task_id)
        return {"task": task_id} | fields

    async def cancel_all(self, body: Mapping[str, Any], operator: str) -> dict[str, Any]:
        """Cancel the tasks in the body of a request. Return the results in the order of the tasks.

        Raises:
            InvalidParamsError: The body has no list of 1 to `MAX_TASKS` ids.
        """
        return {"results": [await self.cancel(task_id, operator) for task_id in _task_ids(body)]}

    async def signal(self, task_id: str, body: Mapping[str, Any], operator: str) -> dict[str, Any]:
        """Send the signal in `body` to a task, and publish a run that the signal resumes.

        Returns:
            The id of the task, and whether a run waited for the signal.

        Raises:
            InvalidParamsError: The body is not a signal.
            TaskNotFoundError: The store has no such task.
            UnsupportedOperationError: The task cannot receive the signal.
        """
        signal = Signal.from_body(body, Sender.OPERATOR)
        steps = await self._store.run(read_steps(self._keys, task_id))
        fields = {"task": task_id, "signal": signal.name, "agent": steps.agent if steps else None}
        answer = await self._service.signal(task_id, signal)
        result = _result(answer) if isinstance(answer, Refusal) else "resumed" if answer.has_resumed else "stored"
        audit.record(Action.SIGNAL_SENT, operator, f"task {task_id}", result, **fields)
        if isinstance(answer, Refusal):
            raise error_of(answer)
        return {"task": task_id, "result": result}

    async def requeue(self, task_id: str, operator: str) -> dict[str, Any]:
        """Create a new task from the dead letter `task_id` and publish its run. Concurrent calls create one task.

        Returns:
            The ids of the new task and of the dead letter, and whether an earlier call has created the task.

        Raises:
            TaskNotFoundError: There is no such task.
            UnsupportedOperationError: The task is not a dead letter, or this gateway does not have its agent.
        """
        answer = await self._requeue(task_id, operator)
        if isinstance(answer, Refusal):
            raise error_of(answer)
        return answer

    async def requeue_page(self, cursor: int, operator: str) -> dict[str, Any]:
        """Requeue a page of the dead letters of all owners.

        Args:
            cursor: `next` of the previous page, or 0.
            operator: Name of the caller, for the log.

        Returns:
            The result for each dead letter, the cursor of the next page, and the number of remaining dead letters. The
            result of a dead letter that was not requeued has the reason as `error`.
        """
        page = await self._store.run(scan_list(self._keys, self._keys.dead_letters, cursor=cursor))
        results = []
        for task_id in dict.fromkeys(task.ref.task_id for task in page.tasks):
            answer = await self._requeue(task_id, operator)
            if isinstance(answer, Refusal):
                answer = {"requeuedFrom": task_id, "error": error_of(answer).message}
            results.append(answer)
        remaining = (await self._store.run(read_metrics(self._keys))).dead_letters
        return {"results": results, "next": page.cursor, "remaining": remaining}

    async def _requeue(self, task_id: str, operator: str) -> dict[str, Any] | Refusal:
        target, answer = f"task {task_id}", await self._service.requeue(task_id)
        if isinstance(answer, Refusal):
            audit.record(Action.TASK_REQUEUED, operator, target, _result(answer), requeued_from=task_id)
            return answer
        result = "before" if answer.was_requeued_before else "requeued"
        fields = {"agent": answer.agent or None, "task": answer.task_id, "requeued_from": task_id}
        audit.record(Action.TASK_REQUEUED, operator, target, result, **fields)
        return {"task": answer.task_id, "requeuedFrom": task_id, "before": answer.was_requeued_before}


def _result(refusal: Refusal) -> str:
    return "missing" if refusal.reason is Reason.MISSING else "refused"


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
