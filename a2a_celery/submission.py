"""Submission of tasks from Python without HTTP: `A2A.submit` and the handle of a task.

Each process has a background thread whose event loop owns the connections. The blocking and the asynchronous methods
run their work on this loop, so a handle can be used in any thread and on any event loop. The thread is created on the
first call in each process, so forked processes do not share it.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar
from uuid import uuid4

from a2a.types import SendMessageRequest, StreamResponse, Task

from .agents import Agent
from .caller import Caller
from .client.connection.transports import trace_of_current_run
from .client.errors import DeadlineExceeded
from .client.result import Result
from .client.session import Content, Session
from .concurrency import LoopThread
from .current_run import CURRENT_RUN, CurrentRun
from .dispatch import Publisher
from .errors import SignalRefused
from .lifecycle import EventId, LogEntry, is_interrupted, is_terminal
from .lifecycle.events import stream_response
from .lifecycle.json_values import portable
from .lifecycle.outcomes import CANCELED_BY_CLIENT, CANCELED_WITH_RUN
from .lifecycle.references import Scope
from .lifecycle.refusals import Reason, Refusal
from .lifecycle.states import SUBMITTED
from .operations.errors import not_found
from .operations.publication import RunPublisher
from .operations.service import TaskService
from .operations.signals import Signal
from .operations.submitter import TaskSubmitter
from .settings import Settings
from .store import Keys
from .store.admin.schema import require_schema
from .store.blobs.blob_store import blobs_of
from .store.blobs.cleanup import require_blobs_known
from .store.client.connection import TracedStore, run_with_retry
from .store.log.follower import LogFollower, StreamCursor
from .store.log.pubsub import PubSubListener
from .store.tasks.commands import read_task
from .store.tasks.replies import CancelRequested
from .telemetry.tracing import trace_to_keep

T = TypeVar("T")

CANCEL_MARGIN = 2.0
"""Seconds that `TaskHandle.cancel` waits for the end of the task, in addition to the agent's `cancel_grace`."""


@dataclass(frozen=True, slots=True)
class Submission:
    """Message to submit, with its caller.

    Create the object in the thread or coroutine of the submitting code, because `of` reads the run and the trace of the
    current context.

    Attributes:
        run: Run that submits the message, with which the new task is cancelled, or None.
    """

    agent: str
    params: SendMessageRequest
    caller: Caller
    run: CurrentRun | None = None

    @classmethod
    def of(
        cls,
        agent: str,
        content: Content,
        *,
        owner: str | None = None,
        tenant: str | None = None,
        context_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        extensions: Sequence[str] | None = None,
    ) -> Submission:
        """Return a submission of `content`; see `A2A.submit`.

        Raises:
            TypeError: `content` has a type that A2A cannot represent.
        """
        owner, tenant = owner or "", tenant or ""
        message = Session(context_id or "").message(content)
        values = portable(dict(metadata or {}), "metadata")
        params = SendMessageRequest(message=message, tenant=tenant, metadata=values)
        trace = trace_of_current_run() or trace_to_keep({})
        caller = Caller(owner, bool(owner), tenant, tuple(sorted(extensions or ())), trace)
        return cls(agent, params, caller, CURRENT_RUN.get())


class SubmissionProcess:
    """Background thread of a process, with its event loop and its connections."""

    def __init__(self, agents: Mapping[str, Agent], settings: Settings, publisher: Publisher) -> None:
        self.settings = settings
        self.keys = Keys(settings.key_prefix)
        self.publisher = publisher
        self._connections = AsyncExitStack()
        self._loop_thread = LoopThread("a2a-submissions", uvloop=settings.uvloop)
        self.loop = self._loop_thread.loop
        try:
            asyncio.run_coroutine_threadsafe(self._start(agents), self.loop).result()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the connections and end the thread."""
        asyncio.run_coroutine_threadsafe(self._connections.aclose(), self.loop).result()
        self._loop_thread.stop()

    async def _start(self, agents: Mapping[str, Agent]) -> None:
        settings = self.settings
        self.store = TracedStore(settings.store_url, blobs_of(settings), wait_replicas=settings.store_wait_replicas)
        self._connections.push_async_callback(self.store.aclose)
        self.listener = PubSubListener(settings.store_url)
        self._connections.push_async_callback(self.listener.stop)
        await require_schema(self.store, self.keys)
        if self.store.first is None:  # the store is available
            await require_blobs_known(self.store, self.keys, settings)
        self.follower = LogFollower(self.store, self.keys, self.listener)
        runs = RunPublisher(self.publisher, self.store, self.keys, settings)
        self.service = TaskService(agents, settings, self.store, self.keys, runs)
        self.submitter = TaskSubmitter(self.service)


class Submissions:
    """Submitter of messages to the agents of an app, for any process, thread and event loop."""

    def __init__(
        self, agents: Mapping[str, Agent], settings: Callable[[], Settings], publisher: Callable[[], Publisher]
    ) -> None:
        self._agents = agents
        self._settings = settings
        self._publisher = publisher
        self._processes: dict[int, SubmissionProcess] = {}
        # One lock per process, because a lock that is held during a fork stays locked in the child.
        self._locks: dict[int, threading.Lock] = {}

    def submit(
        self, submission: Submission, on_commit: Callable[[Callable[[], None]], None] | None = None
    ) -> TaskHandle:
        """Submit a message and return the handle of its task; see `A2A.submit`."""
        if on_commit is None:
            return self.run(lambda process: self._submit(process, submission))

        async def check(process: SubmissionProcess) -> None:
            process.submitter.check(submission.agent, submission.params, submission.caller)

        def submit() -> None:
            submitted = self.run(lambda process: self._submit(process, submission, handle.task_id))
            handle.task_id, handle.context_id = submitted.task_id, submitted.context_id

        self.run(check)
        caller = submission.caller
        scope = caller.scope(submission.agent)
        handle = TaskHandle(self, str(uuid4()), submission.params.message.context_id, scope, submission.run)
        on_commit(submit)
        return handle

    async def submit_async(self, submission: Submission) -> TaskHandle:
        """Submit a message without blocking the caller's event loop; see `submit`."""
        return await self.run_async(lambda process: self._submit(process, submission))

    def handle(self, agent: str, task_id: str, *, owner: str | None = None, tenant: str | None = None) -> TaskHandle:
        """Return the handle of an existing task; see `A2A.task`."""
        return TaskHandle(self, task_id, "", Scope(agent, tenant or "", owner or ""))

    def signal(self, task_id: str, signal: Signal) -> bool:
        """Send a signal to a task of any owner; see `A2A.signal`."""
        return self.run(lambda process: _signal(process, task_id, signal))

    async def signal_async(self, task_id: str, signal: Signal) -> bool:
        """Send a signal without blocking the caller's event loop; see `signal`."""
        return await self.run_async(lambda process: _signal(process, task_id, signal))

    def run(self, call: Callable[[SubmissionProcess], Coroutine[Any, Any, T]]) -> T:
        """Run a call on the background loop, and block until the call returns.

        Raises:
            RuntimeError: A coroutine called this method, which would block the coroutine's event loop.
        """
        if _is_in_coroutine():
            raise RuntimeError("a blocking call would block this event loop: await the method with the suffix _async")
        process = self._process()
        future = asyncio.run_coroutine_threadsafe(call(process), process.loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    async def run_async(self, call: Callable[[SubmissionProcess], Coroutine[Any, Any, T]]) -> T:
        """Run a call on the background loop, and wait for its result without blocking the caller's event loop."""
        process = await asyncio.to_thread(self._process)
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call(process), process.loop))

    async def _submit(self, process: SubmissionProcess, submission: Submission, task_id: str = "") -> TaskHandle:
        caller, submit = submission.caller, process.submitter.submit
        task_id, context_id = await submit(submission.agent, submission.params, caller, task_id=task_id)
        scope, run = caller.scope(submission.agent), submission.run
        handle = TaskHandle(self, task_id, context_id, scope, run)
        if run is not None:
            run.add(f"task {task_id}", partial(self.run_async, handle._cancel_with_run))
        return handle

    def close(self) -> None:
        """Close the connections of this process. The next call opens new connections."""
        process = self._processes.pop(os.getpid(), None)
        if process is not None:
            process.close()

    def _process(self) -> SubmissionProcess:
        pid = os.getpid()
        process = self._processes.get(pid)
        if process is None:
            with self._locks.setdefault(pid, threading.Lock()):
                process = self._processes.get(pid)
                if process is None:
                    process = SubmissionProcess(self._agents, self._settings(), self._publisher())
                    self._processes[pid] = process
        return process


async def _signal(process: SubmissionProcess, task_id: str, signal: Signal) -> bool:
    result = await process.service.signal(task_id, signal)
    if isinstance(result, Refusal):
        raise SignalRefused(str(result))
    return result.has_resumed


class TaskHandle:
    """Handle of a task in this app. The methods use the store and the broker instead of HTTP.

    Each blocking method has an asynchronous variant. A blocking method raises RuntimeError if a coroutine calls it.

    Attributes:
        task_id: Id of the task.
        context_id: Id of the task's context, or "" for a handle from `A2A.task`.
        agent: Name of the task's agent.
    """

    def __init__(
        self,
        submissions: Submissions,
        task_id: str,
        context_id: str,
        scope: Scope,
        run: CurrentRun | None = None,
    ) -> None:
        self.task_id = task_id
        self.context_id = context_id
        self.agent = scope.agent
        self._submissions = submissions
        self._scope = scope
        self._run = run

    def __repr__(self) -> str:
        return f"TaskHandle({self.agent!r}, {self.task_id!r})"

    def result(self, timeout: float | None = None) -> Result:
        """Wait until the task is terminal or interrupted, and return its result.

        Args:
            timeout: Seconds to wait, or None for no limit. With 0, only the current state is checked.

        Raises:
            DeadlineExceeded: The task did not become terminal or interrupted in time. The task continues. The `result`
                of the exception contains the current task.
            TaskNotFoundError: The task does not exist, or was deleted after its retention period.
            StoreUnavailable: The store is unavailable.
        """
        return self._submissions.run(lambda process: self._result(process, timeout))

    async def result_async(self, timeout: float | None = None) -> Result:
        """Wait for the result without blocking the event loop; see `result`."""
        return await self._submissions.run_async(lambda process: self._result(process, timeout))

    def events(self) -> Iterator[StreamResponse]:
        """Yield the task, and then its events until the task is terminal or interrupted, like `RemoteAgent.follow`.

        Raises:
            TaskNotFoundError: The task does not exist, or was deleted after its retention period.
            StoreUnavailable: The store is unavailable.
        """
        cursor: StreamCursor | None = None
        while cursor is None or cursor.end is None:
            cursor, events = self._submissions.run(partial(self._next_events, cursor))
            yield from events

    async def events_async(self) -> AsyncGenerator[StreamResponse, None]:
        """Yield the task and its events without blocking the event loop; see `events`."""
        cursor: StreamCursor | None = None
        while cursor is None or cursor.end is None:
            cursor, events = await self._submissions.run_async(partial(self._next_events, cursor))
            for event in events:
                yield event

    def cancel(self) -> Result:
        """Cancel the task as CancelTask does, and wait until the agent has stopped. The wait ends shortly after the
        agent's `cancel_grace` at the latest.

        Returns:
            The task after the request. The `stop_reason` of the result is None if the agent is still stopping. A task
            that had already ended is returned unchanged.

        Raises:
            TaskNotFoundError: The task does not exist, or was deleted after its retention period.
            StoreUnavailable: The store is unavailable.
        """
        return self._submissions.run(self._cancel)

    async def cancel_async(self) -> Result:
        """Cancel the task without blocking the event loop; see `cancel`."""
        return await self._submissions.run_async(self._cancel)

    async def _result(self, process: SubmissionProcess, timeout: float | None) -> Result:
        try:
            async with asyncio.timeout(timeout):
                final = await process.follower.final_task(self._scope, self.task_id)
        except TimeoutError:
            task, _ = await self._read(process)
            result = Result.of(task)
            if is_final(task):
                return result
            hint = ": no worker has begun it" if task.status.state == SUBMITTED else ""
            text = f"the task {self.task_id} took longer than {timeout} s, and is {result.state_name}{hint}"
            raise DeadlineExceeded(text, result) from None
        if final is None:
            raise not_found(self.task_id)
        if self._run is not None and (final.answer or is_terminal(final.task.status.state)):
            self._run.remove(f"task {self.task_id}")
        return Result.of(final.answer or final.task)

    async def _cancel_with_run(self, process: SubmissionProcess) -> None:
        await self._request_cancel(process, self.context_id, CANCELED_WITH_RUN)

    async def _read(self, process: SubmissionProcess, *, complete: bool = True) -> tuple[Task, EventId]:
        """Return the task, without contents unless `complete`, and the id of its newest event."""
        length = None if complete else 0
        operation = read_task(process.keys, self._scope, self.task_id, history_length=length, artifacts=complete)
        snapshot = await run_with_retry(process.store, operation)
        if snapshot is None:
            raise not_found(self.task_id)
        return snapshot

    async def _next_events(
        self, cursor: StreamCursor | None, process: SubmissionProcess
    ) -> tuple[StreamCursor, list[StreamResponse]]:
        """Wait for events after `cursor`, and return the cursor after them. The first event, after None, is the task.

        Each call subscribes again, because the caller may continue on another loop or in a forked process.
        """
        if cursor is None:
            task, newest = await self._read(process)
            cursor = StreamCursor(task.id, task.context_id, newest)
            if is_final(task):
                cursor.end = LogEntry(*newest, task)
            return cursor, [stream_response(task)]
        follower = process.follower
        async with follower.listen(self.task_id) as wakeup, aclosing(follower.events(cursor, wakeup)) as pages:
            async for events in pages:
                if events or cursor.end is not None:
                    return cursor, [stream_response(event.event) for event in events]
        raise not_found(self.task_id)

    async def _cancel(self, process: SubmissionProcess) -> Result:
        context_id = self.context_id or (await self._read(process, complete=False))[0].context_id
        if await self._request_cancel(process, context_id):
            grace = process.submitter.agent(self.agent).grace(process.settings)
            try:
                return await self._result(process, grace + CANCEL_MARGIN)
            except DeadlineExceeded as e:
                return e.result
        task, _ = await self._read(process)
        return Result.of(task)

    async def _request_cancel(
        self, process: SubmissionProcess, context_id: str, text: str = CANCELED_BY_CLIENT
    ) -> bool:
        """Request the cancellation of the task, and return True if the task's worker was asked to cancel the run."""
        reply = await process.service.cancel(self._scope, self.task_id, context_id, text=text)
        if isinstance(reply, Refusal) and reply.reason is Reason.MISSING:
            raise not_found(self.task_id)
        return isinstance(reply, CancelRequested)


def is_final(task: Task) -> bool:
    """Return True if the task is terminal or interrupted."""
    return is_terminal(task.status.state) or is_interrupted(task.status.state)


def _is_in_coroutine() -> bool:
    """Return True if the caller is a coroutine. A running event loop does not show it, because under gevent all
    greenlets are in the thread that runs the loop of the agents."""
    try:
        return asyncio.current_task() is not None
    except RuntimeError:  # no event loop is running
        return False
