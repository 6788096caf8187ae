"""Plain Celery tasks as agents: what happens inside a worker when an A2A task is what calls one.

The task keeps its own name, queue, limits and retries, and runs where Celery runs it: in the thread of the pool, in the
main thread of a prefork child. The run around it (claim, lease, cancel, settle) is on the process's event loop as any
other, and borrows that thread. Whoever else calls the task finds it unchanged.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import replace
from datetime import datetime, timedelta
from queue import SimpleQueue
from typing import Any, TypeGuard

from a2a.types import TaskStatus, TaskStatusUpdateEvent
from billiard.exceptions import SoftTimeLimitExceeded
from celery import Task, states
from celery.canvas import Signature
from celery.exceptions import Ignore, Reject, Retry, WorkerShutdown, WorkerTerminate
from celery.result import ResultBase
from kombu.utils import json as kombu_json

from ..agents import Agent
from ..caller import Caller
from ..dispatch import Call, Canvas, RunOptions
from ..errors import AgentSignal
from ..lifecycle import Canceled, Completed, Failed, HandedOn, Lost, Outcome, Paused, Refused, Rejected, Retried
from ..lifecycle.content import jsonable
from ..lifecycle.outcomes import OUT_OF_TIME
from ..lifecycle.states import WORKING
from ..store.runs import Claim
from ..telemetry.tracing import span_at_hand
from .events import RunEvents
from .force import in_pool_child
from .request import RunFailed
from .session import CURRENT as SESSION
from .session import ContextSession
from .steps import CURRENT_EXECUTION
from .turn import Reply, Turn

logger = logging.getLogger(__name__)

CURRENT: ContextVar[TaskAdapter] = ContextVar("a2a_celery_plain_task")
"""The call that is being made in this thread, if an A2A task makes one."""


class Carried(Ignore):  # type: ignore[misc]
    """Carries an agent's signal past Celery's autoretry, which would take it for a failure."""

    def __init__(self, signal: AgentSignal) -> None:
        super().__init__(str(signal))
        self.signal = signal


class TaskAdapter:
    """One call of a plain task, in the Celery thread that it came to."""

    announces = True

    def __init__(self, agent: Agent, task: Task, call: Callable[[], Any]) -> None:
        self.agent = agent
        self.task = task
        self.celery_id = str(task.request.id)
        self.retries = int(task.request.retries or 0)
        self._call = call
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._value: Any = None
        self._error: BaseException | None = None
        self._canvas: ResultBase | None = None
        self._session: ContextSession | None = None
        self.retry_signature: Signature | None = None
        self.retry_is_published = True
        self._loop: asyncio.AbstractEventLoop
        self._events: RunEvents
        self.turn: Turn

    @property
    def max_attempts(self) -> int | None:
        """How often Celery runs the task at most; None: as often as it takes."""
        most = getattr(self.task, "override_max_retries", self.task.max_retries)
        return None if most is None else most + 1

    def lend_thread(self, run: Future[Outcome | None]) -> Outcome | None:
        """Calls the task in this thread when its run is claimed; returns the end of `run`."""
        run.add_done_callback(lambda _: self._calls.put(None))
        call = self._calls.get()
        if call is not None:
            call()
        return run.result()

    async def run(self, claim: Claim, events: RunEvents) -> Outcome:
        """See `Adapter`."""
        self._loop = loop = asyncio.get_running_loop()
        self._events, self.turn = events, Turn(claim, events, Caller.from_json(claim.caller))
        self._session = SESSION.get()  # the thread has a context of its own
        self.turn.related_tasks = await events.store.own_tasks(self.turn.message.reference_task_ids)
        returned: asyncio.Future[None] = loop.create_future()

        span = span_at_hand()

        def call() -> None:
            with span:
                self._make_call()
            with suppress(RuntimeError):  # the loop is gone, and so is the process
                loop.call_soon_threadsafe(returned.set_result, None)

        self._calls.put(call)
        try:
            await asyncio.shield(returned)
        except asyncio.CancelledError:
            await returned  # the thread can't be reached: only its process can be ended
            raise
        return await self._outcome()

    async def cancel(self, claim: Claim, events: RunEvents) -> None:
        """Nothing beforehand: the task is stopped with its process, if at all."""

    def conclude(self, outcome: Outcome | None) -> Any:
        """What Celery is told: the task's own end, where that is the end of the run."""
        match outcome:
            case Completed() | HandedOn() if self._error is None:
                return self._value.as_tuple() if isinstance(self._value, ResultBase) else self._value
            case Paused():
                self._tell_celery("INPUT_REQUIRED")
            case Canceled():
                self._tell_celery(states.REVOKED)
            case Retried() | Failed() | Rejected() | Refused() if _is_fit_for_celery(self._error):
                raise self._error.signal if isinstance(self._error, Carried) else self._error
            case Lost() if self._error is not None:
                raise self._error
            case Failed(text):
                raise RunFailed(text)
        raise Ignore  # not ours, or not any more

    def progress(self, state: str | None, meta: Any) -> None:
        """The task's own state, shown as progress; Celery's own states say nothing that the log doesn't."""
        if state is None or state in states.ALL_STATES:
            return
        shown = jsonable(meta)
        if not isinstance(shown, dict):
            shown = {} if shown is None else {"meta": shown}
        event = TaskStatusUpdateEvent(status=TaskStatus(state=WORKING), metadata={**shown, "celery_state": state})
        asyncio.run_coroutine_threadsafe(self._events.enqueue_event(event), self._loop).result()

    def replaced(self, canvas: ResultBase) -> None:
        """The task was replaced by a canvas, whose end has the task's id."""
        self._canvas = canvas

    def unpublished_retry(self, reason: object, error: BaseException | None) -> Retry:
        """Return the retry that Celery could not publish for `reason`: the store publishes it when it is due."""
        signature = self.retry_signature
        when = signature.options.get("eta") or signature.options.get("countdown") if signature is not None else None
        self.retry_is_published = False
        logger.warning("run %s: a watcher publishes its retry, the broker did not take it: %s", self.celery_id, reason)
        return Retry(exc=error, when=when, sig=signature)

    def options(self, stored: bytes) -> RunOptions:
        """How the run is published that Celery retries now; `stored` is how it was this time."""
        options = RunOptions.from_json(stored)
        if not isinstance(self._error, Retry):
            return replace(options, retries=self.retries)
        call, again = options.call, self._error.sig
        if call is not None and again is not None and not again.args:
            with suppress(TypeError, ValueError):  # no JSON: the message has them, a watcher's would have those before
                kwargs = kombu_json.dumps(dict(again.kwargs))  # type: ignore[no-untyped-call]
                call = Call(call.task, json.loads(kwargs))
        return replace(options, call=call, retries=self.retries + 1, not_before=self._when(self._error))

    def _make_call(self) -> None:
        token, step = CURRENT.set(self), CURRENT_EXECUTION.set(self.turn.execution)
        session = SESSION.set(self._session)
        try:
            self._value = self._call()
            if isinstance(self._value, Signature):
                self._value = self._value.apply_async()
            if isinstance(self._value, ResultBase):
                self._canvas = self._value
        except BaseException as e:
            self._error = e
        finally:
            SESSION.reset(session)
            CURRENT.reset(token)
            CURRENT_EXECUTION.reset(step)

    async def _outcome(self) -> Outcome:
        """How the call ended; raises what an agent would raise."""
        match self._error:
            case None | Ignore() if self._canvas is not None:
                return HandedOn(Canvas.of(self.task.app, self._canvas, self.agent.time_limit).to_json())
            case None:
                await Reply(self.turn).whole(jsonable(self._value))
                return Completed()
            case Carried(signal=signal):
                raise signal
            case Retry():
                when = self._when(self._error)
                return Retried(self.retries + 2, self.max_attempts, when.isoformat() if when else "")
            case Reject(requeue=True) if self.task.acks_late:  # the broker brings the same message again
                return Retried(self.retries + 1, self.max_attempts, "")
            case Ignore():  # so Celery keeps no result; nor is there an artifact
                return Completed()
            case SoftTimeLimitExceeded():
                return Failed(OUT_OF_TIME)
            case SystemExit() | KeyboardInterrupt() if _ends_the_process(self._error):
                return Lost()  # the worker's main process says what that means
            case _:
                raise self._error

    def _when(self, retry: Retry) -> datetime | None:
        """When the next attempt begins; None: at once."""
        when = retry.when
        if isinstance(when, int | float):
            when = self.task.app.now() + timedelta(seconds=when) if when else None
        return when if isinstance(when, datetime) else None

    def _tell_celery(self, state: str) -> None:
        if not self.task.ignore_result:
            with suppress(Exception):  # the result backend is down: the store knows
                Task.update_state(self.task, state=state)


def _is_fit_for_celery(error: BaseException | None) -> TypeGuard[Exception]:
    """What Celery handles as a failure; the rest would end the worker, or leave its thread unheard."""
    return isinstance(error, Exception) and not isinstance(error, MemoryError)


def _ends_the_process(error: BaseException) -> bool:
    """Whether `error` is Celery's way to end this process, as a signal to a prefork child is; there Celery replaces it.
    Elsewhere it is a task that would take the whole worker with it."""
    return in_pool_child() or isinstance(error, WorkerShutdown | WorkerTerminate)


def current_turn() -> Turn | None:
    """The turn that a plain Celery task works for: its message, its task, its caller, `turn.blocking.say` and so on.

    None: it was not an A2A task that called it.
    """
    running = CURRENT.get(None)
    return None if running is None else running.turn
