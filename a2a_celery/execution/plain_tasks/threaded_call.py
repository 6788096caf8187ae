"""Plain Celery tasks as agents: execution of a Celery task for the run of an A2A task.

The task keeps its name, queue, limits and retries, and is executed where Celery executes it: in a thread of the pool,
or in the main thread of a prefork child. The run around the task (claim, lease, cancellation, settlement) is executed
on the event loop of the process, and the thread waits for the run. Other callers of the task see no difference.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import replace
from queue import SimpleQueue
from typing import Any

from a2a.types import TaskStatus, TaskStatusUpdateEvent
from billiard.exceptions import SoftTimeLimitExceeded
from celery import Task, states
from celery.canvas import Signature
from celery.exceptions import Ignore, Reject, Retry, WorkerShutdown, WorkerTerminate
from celery.result import ResultBase

from ...agents import Agent
from ...caller import Caller
from ...concurrency import result_of
from ...current_run import CURRENT_RUN
from ...dispatch import Canvas, RunOptions, ignored_results
from ...errors import EndRun
from ...features.worker import CONTEXT_VARIABLES
from ...lifecycle import Completed, Delegated, Failure, Lost, Outcome, Retried
from ...lifecycle.events import jsonable
from ...lifecycle.outcomes import OUT_OF_TIME
from ...lifecycle.own_metadata import progress_metadata
from ...lifecycle.states import WORKING
from ...telemetry.tracing import current_span_context
from ..agents.adapters import Reply
from ..agents.running_agent import CURRENT as RUNNING_AGENT
from ..agents.turn import Turn
from ..events.activities import CURRENT_EXECUTION
from ..events.queue import RunEventQueue
from ..open_run import OpenRun
from ..process.forced_stop import in_pool_child
from .celery_retries import max_attempts, retry_options, time_of

logger = logging.getLogger(__name__)

CURRENT: ContextVar[ThreadedCall] = ContextVar("a2a_celery_plain_task")
"""Call that this thread makes for the run of an A2A task. Not set in other calls."""


class Carried(Ignore):  # type: ignore[misc]
    """Exception that carries an `EndRun` past Celery's autoretry, which would treat the `EndRun` as a failure."""

    def __init__(self, end: EndRun) -> None:
        super().__init__(str(end))
        self.end = end


class ThreadedCall:
    """Call to a plain task, in the Celery thread that received the task's message: the adapter of one run.

    Attributes:
        value: Return value of the task.
        error: Exception of the task, or None.
        retry_signature: Signature of the retry that Celery publishes, or None.
        retry_is_published: True if the broker has accepted Celery's message for the next attempt.
        retry_is_written: True if the retry is recorded in the store.
    """

    announces = True

    def __init__(self, agent: Agent, task: Task, call: Callable[[], Any]) -> None:
        self.agent = agent
        self.task = task
        self.celery_id = str(task.request.id)
        self.retries = int(task.request.retries or 0)
        self._call = call
        self.value: Any = None
        self.error: BaseException | None = None
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._canvas: ResultBase | None = None
        self._ignored_results: dict[str, str] = {}
        self._variables: list[tuple[ContextVar[Any], Any]] = []
        self.retry_signature: Signature | None = None
        self.retry_is_published = self.retry_is_written = True
        self._loop: asyncio.AbstractEventLoop
        self._events: RunEventQueue
        self.turn: Turn

    @property
    def max_attempts(self) -> int | None:
        """Maximum number of attempts by Celery, or None for no limit."""
        return max_attempts(self.task)

    def lend_thread(self, run: Future[Outcome | None]) -> Outcome | None:
        """Call the task in this thread when its run has been claimed. Return the outcome of `run`, or None if this
        worker did not claim the run."""
        run.add_done_callback(lambda _: self._calls.put(None))
        call = self._calls.get()
        if call is not None:
            call()
        return run.result()

    async def run(self, run: OpenRun, events: RunEventQueue) -> Outcome:
        self._loop = loop = asyncio.get_running_loop()
        self._events, self.turn = events, Turn(run, events, Caller.from_json(run.claim.turn.caller))
        variables = (*CONTEXT_VARIABLES, CURRENT_RUN, RUNNING_AGENT)
        self._variables = [(variable, variable.get()) for variable in variables]  # the thread has a separate context
        self.turn.related_tasks = await run.own_tasks(self.turn.message.reference_task_ids)
        return_future: asyncio.Future[None] = loop.create_future()

        span = current_span_context()

        def call() -> None:
            with span:
                self._make_call()
            with suppress(RuntimeError):  # the event loop is closed, because the process is exiting
                loop.call_soon_threadsafe(return_future.set_result, None)

        self._calls.put(call)
        try:
            await asyncio.shield(return_future)
        except asyncio.CancelledError:
            await return_future  # the thread cannot be stopped, except by ending its process
            raise
        return await self._outcome()

    async def cancel(self, run: OpenRun, events: RunEventQueue) -> None:
        """Do nothing: only the exit of the process stops the task."""

    def progress(self, state: str | None, meta: Any) -> None:
        """Send a custom state of the task as progress. Celery's built-in states are not written to the log."""
        if state is None or state in states.ALL_STATES:
            return
        event = TaskStatusUpdateEvent(status=TaskStatus(state=WORKING), metadata=progress_metadata(state, meta))
        result_of(asyncio.run_coroutine_threadsafe(self._events.enqueue_event(event), self._loop))

    def replaced(self, canvas: ResultBase) -> None:
        """Record that a canvas has replaced the task. The last task of the canvas has the id of the replaced task."""
        self._canvas = canvas

    def note_published(self, headers: Mapping[str, Any], body: Any) -> None:
        """Record published tasks that do not store a result, because a canvas may end with such a task."""
        self._ignored_results |= ignored_results(self.task.app, headers, body)

    def unpublished_retry(self, reason: object, error: BaseException | None) -> Retry:
        """Return the retry that Celery could not publish because of `reason`. A watcher publishes the run when the
        retry is due."""
        signature = self.retry_signature
        when = signature.options.get("eta") or signature.options.get("countdown") if signature is not None else None
        self.retry_is_published = False
        logger.warning(
            "run %s: a watcher will publish its retry, not accepted by the broker: %s", self.celery_id, reason
        )
        return Retry(exc=error, when=when, sig=signature)

    def options(self, content: bytes) -> RunOptions:
        """Return the options with which the run is published for its retry.

        Args:
            content: Options of the current attempt.
        """
        if not isinstance(self.error, Retry):
            return replace(RunOptions.from_json(content), retries=self.retries)
        return retry_options(content, self.error, self.retries + 1, self.task.app)

    def _make_call(self) -> None:
        token, step = CURRENT.set(self), CURRENT_EXECUTION.set(self.turn.execution)
        tokens = [(variable, variable.set(value)) for variable, value in self._variables]
        self.turn._agent.adopt_thread()
        try:
            self.value = self._call()
            if isinstance(self.value, Signature):
                self.value = self.value.apply_async()
            if isinstance(self.value, ResultBase):
                self._canvas = self.value
        except BaseException as e:
            self.error = e
        finally:
            for variable, previous in tokens:
                variable.reset(previous)
            CURRENT.reset(token)
            CURRENT_EXECUTION.reset(step)

    async def _outcome(self) -> Outcome:
        """Return the outcome of the call, or raise the exception that an agent would raise."""
        match self.error:
            case None | Ignore() if self._canvas is not None:
                canvas = Canvas.of(self.task.app, self._canvas, self.agent.time_limit, self._ignored_results)
                return Delegated(canvas.to_json())
            case None:
                await Reply(self.turn).send_result(jsonable(self.value))
                return Completed()
            case Carried(end=end):
                raise end
            case Retry():
                when = time_of(self.error, self.task.app)
                return Retried(self.retries + 2, self.max_attempts, when.isoformat() if when else "")
            case Reject(requeue=True) if self.task.acks_late:  # the broker redelivers the message
                return Retried(self.retries + 1, self.max_attempts, "")
            case Ignore():  # Celery stores no result, so there is no artifact
                return Completed()
            case SoftTimeLimitExceeded():
                return Failure(OUT_OF_TIME)
            case SystemExit() | KeyboardInterrupt() if _ends_the_process(self.error):
                return Lost()  # the worker's main process writes the outcome
            case _:
                raise self.error


def _ends_the_process(error: BaseException) -> bool:
    """Return True if Celery uses `error` to end this process.

    In a prefork child, a signal handler raises the error, and Celery replaces the child. Elsewhere, only Celery's own
    exceptions end the process, because any other exception would end the whole worker.
    """
    return in_pool_child() or isinstance(error, WorkerShutdown | WorkerTerminate)


def current_turn() -> Turn | None:
    """Return the turn of the plain Celery task that is being executed: its message, task, caller and `turn.blocking`.

    Returns:
        The turn, or None if this thread does not execute a Celery task for the run of an A2A task.
    """
    running = CURRENT.get(None)
    return None if running is None else running.turn
