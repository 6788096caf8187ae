"""`AgentTester`, which runs an agent in the process of a test, with an embedded Redis server and a clock that the test
moves.

The code of the gateway, the runs, the watcher's roles and the store's scripts is the same as in a real fleet. A
simulation replaces the broker, the processes and the server's clock; see the other modules of this package.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Collection, Mapping
from contextlib import AsyncExitStack, aclosing
from datetime import datetime, timedelta
from typing import Any, Self
from uuid import uuid4

import httpx
from a2a.types import Message, StreamResponse, Task, TaskStatusUpdateEvent

from ..client import DeadlineExceeded, RemoteAgent, Result
from ..client.result import ResultBuilder
from ..client.session import AgentSession, Content, Session
from ..dispatch import Consumer, RunOptions, RunReports
from ..features.watcher import ROLES
from ..gateway.asgi import build_asgi
from ..integrations.celery import memory_broker
from ..lifecycle.client_events import client_event
from ..lifecycle.events import stream_response
from ..lifecycle.own_metadata import CONTINUES_AT, NAMESPACE, NEXT_ATTEMPT_AT, WAITS_FOR
from ..lifecycle.references import RunRef
from ..lifecycle.signals import kind_of_signal
from ..lifecycle.states import WORKING
from ..operations.publication import RunPublisher
from ..operations.service import TaskService
from ..store import Keys
from ..store.log.pages import read_log
from ..store.tasks.commands import read_task
from ..watcher.dispatcher import Dispatcher
from ..watcher.plain_tasks.results import Observation, Progress, Results
from ..watcher.recoverer import PauseExpirer, Recoverer, delay_after
from ..watcher.role_loop import Role
from .agent_source import Target, a2a_and_agent
from .clock import SimulatedClock
from .publisher import InProcessPublisher
from .redis_server import shared_server
from .settings import OWNER_HEADER, simulated_settings
from .store import SimulatedStore
from .transport import InProcessTransport
from .worker import SimulatedWorker, worker_of_thread

logger = logging.getLogger(__name__)

AGENT_TIMEOUT = 60.0
"""Default time for which a call waits for an agent, in seconds of the machine's clock."""

TICK_INTERVAL = 0.05
"""Seconds between two ticks of the watcher's roles."""

CLAIM_POLL_INTERVAL = 0.005
"""Seconds between two checks for unclaimed runs."""

SHORT_WAIT = timedelta(seconds=1)
"""Maximum remaining time of an agent's sleep or retry for which a call to the tester continues to wait."""

URL = "http://agents.test"
"""Address of the gateway, which exists only in this process."""


class NoResults(Results):
    """Stand-in for the result backend, because a simulation has no workers without this package."""

    async def reconcile(self, ref: RunRef, *, is_retry: bool = False) -> Observation:
        """Return that the result backend shows no progress."""
        return Observation(Progress.UNKNOWN)

    async def find(self, names: Collection[str]) -> RunReports:
        """Return that a worker with this package consumes every queue and has no run."""
        return RunReports(workers={"simulated": Consumer(None, claims=True)})


class AgentTester:
    """Agent in the process and on the event loop of a test: ``async with AgentTester(a2a, "echo") as tester``.

    The tester needs no broker, no network and no server except an embedded Redis server, which it starts once per
    process (extra ``testing``). The settings of the app apply, except for settings that refer to other servers or
    configure authentication. Webhooks are not delivered, plain Celery tasks that an agent publishes are not executed,
    and retention does not follow the clock. Use `AgentFleet` to test these features.

    Args:
        target: A2A object with the agent, a function of a `Turn`, an a2a-sdk AgentExecutor (instance or class), or a
            Celery task. If the function is registered with an A2A object, pass the A2A object instead.
        name: Name of the agent. None means the only agent of an A2A object, the name of the function or Celery task, or
            "agent" for an executor.
        workers: Number of simulated workers, at least 1. Successive runs are executed by different workers, each with
            its own executors.
        owner: User who sends the messages, or "" for callers without authentication.
        settings: Settings by name that differ from those of the app, for example ``{"input_timeout": 60}``.
        timeout: Seconds of the machine's clock after which a call that waits for an agent raises DeadlineExceeded.
        options: Options of an agent that is not registered yet, as for ``a2a.agent``, ``a2a.add_agent`` and
            ``a2a.expose``. For an executor, `card` is also accepted.

    Attributes:
        a2a: A2A object with the agent.
        agent: The agent under test.
        clock: Clock of the simulation; see `advance`.
        client: Client of the agent, for calls that this class does not have. Set only inside the ``with`` block.

    Raises:
        ConfigError: There is no such agent, an option or setting is invalid, or the Redis server is not installed or
            did not start.
        ValueError: `workers` is less than 1.
        TypeError: `settings` contains an unknown name. Raised when the block begins.
        RuntimeError: Another tester is using the A2A object. Raised when the block begins.
    """

    client: RemoteAgent

    def __init__(
        self,
        target: Target,
        name: str | None = None,
        *,
        workers: int = 2,
        owner: str = "",
        settings: Mapping[str, Any] | None = None,
        timeout: float = AGENT_TIMEOUT,
        **options: Any,
    ) -> None:
        if workers < 1:
            raise ValueError(f"workers = {workers!r}: at least 1")
        self.a2a, self.agent = a2a_and_agent(target, name, options)
        self.clock = SimulatedClock()
        self._owner = owner
        self._worker_count = workers
        self._changes = dict(settings or {})
        self._timeout = timeout
        self._workers: list[SimulatedWorker] = []
        self._turn = 0
        self._scheduled: set[asyncio.Task[None]] = set()
        self._crashes: Counter[str] = Counter()
        self._crash_keys: set[str] = set()
        self._lock = asyncio.Lock()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            await self._open(stack)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()

    async def send(self, content: Content, *, context_id: str = "") -> Result:
        """Send a message as a new task, and wait until the agent ends its turn or waits.

        Args:
            content: Text, bytes, JSON data, parts or a complete message.
            context_id: Id of the task's context, or "" for a new context.

        Returns:
            The task, which has ended or asks a question. If the agent waits for a signal, for more than a second
            (`Turn.sleep`, a retry), or for a called agent that waits (`Turn.call`), the task is WORKING, and
            `stop_reason` is None.

        Raises:
            A2AError: The agent refuses the message.
            DeadlineExceeded: The agent works for longer than `timeout`. The `result` of the exception is the task so
                far.
        """
        return await self._wait_for_turn(self.client.stream(Session(context_id).message(content)))

    async def answer(self, result: Result, content: Content) -> Result:
        """Send a message to the task of `result`, and wait as `send` does.

        Raises:
            A2AError: The task has ended, or the answer does not match the schema of the question.
            DeadlineExceeded: See `send`.
        """
        return await self._wait_for_turn(self.client.stream(_answer(result, content)))

    async def submit(self, content: Content, *, context_id: str = "") -> Result:
        """Send a message as a new task, and return the task without waiting for the agent.

        Raises:
            A2AError: The agent refuses the message.
        """
        return await self.client.submit(Session(context_id).message(content))

    async def wait(self, result: Result) -> Result:
        """Wait for the task of `result` as `send` does.

        Raises:
            DeadlineExceeded: See `send`.
        """
        await self._until_claimed(result)
        current = await self.client.get(result.task_id)
        if current.stop_reason is not None or (isinstance(current.raw, Task) and await self._is_waiting(current.raw)):
            return current
        return await self._wait_for_turn(self.client.follow(result.task_id), current)

    def stream(self, content: Content) -> AsyncGenerator[StreamResponse, None]:
        """Send a message as a new task, and yield its events while the agent works; see `RemoteAgent.stream`."""
        return self.client.stream(content, deadline=self._timeout)

    def session(self) -> AgentSession:
        """Return a conversation with the agent. All messages belong to one context, and a message answers an open
        question."""
        return self.client.session()

    async def events(self, result: Result) -> list[StreamResponse]:
        """Return all events of the task of `result` so far, in order and in the form that clients receive.
        The first event is the new task."""
        events: list[StreamResponse] = []
        version = 0
        while True:
            page = await self._store.run(read_log(self._keys, result.task_id, version))
            if not page.entries:
                return events
            for entry in page.entries:
                event = client_event(entry, result.task_id, result.context_id)
                if event is not None:
                    events.append(stream_response(event))
            version = page.entries[-1].version

    async def cancel(self, result: Result) -> Result:
        """Cancel the task of `result`, wait until its agent has stopped or its grace period is over, and return the
        task; see `RemoteAgent.cancel`.

        Raises:
            DeadlineExceeded: A run does not begin within `timeout`.
        """
        await self._until_claimed(result)
        return await self.client.cancel(result.task_id)

    async def signal(self, result: Result, name: str, payload: Any = None) -> bool:
        """Send a signal to the task of `result`; see `A2A.signal`.

        Returns:
            True if the agent waited for the signal, or False if the signal was stored.

        Raises:
            SignalRefused: The task has ended or stores too many signals, or its agent is not a function.
            ValueError: The name or the payload is invalid.
            DeadlineExceeded: A run does not begin within `timeout`. The signal was sent.
        """
        has_resumed = await self.a2a.signal_async(result.task_id, name, payload)
        await self._until_claimed(result)
        return has_resumed

    async def advance(self, seconds: float) -> None:
        """Move the clock forward by `seconds`. Waits, retries, limits, timeouts and the work of watchers that are due
        take effect, and due runs have begun when this method returns. Leases of running agents do not expire.

        Raises:
            ValueError: `seconds` is negative.
            DeadlineExceeded: A run does not begin within `timeout`.
        """
        await self._until_claimed()
        async with self._lock:
            self.clock.move(seconds)
            await self._tick()
        await self._until_claimed()

    async def crash(self) -> None:
        """Kill the workers that execute runs, start other workers, and move the clock to the next attempt.

        The next attempt has begun when this method returns. If `max_attempts` is reached, the task fails. Do not call
        this method from the agent. Use `crash_after` instead.

        Raises:
            RuntimeError: No run is being executed.
            DeadlineExceeded: A run does not begin within `timeout`.
        """
        await self._until_claimed()
        victims = [worker for worker in self._workers if worker.active]
        if not victims:
            raise RuntimeError("no run is being executed: there is nothing to crash")
        for worker in victims:
            self._workers.remove(worker)
            await self._crash(worker)

    def crash_after(self, step: str, ordinal: int = 1) -> None:
        """Kill the worker, as `crash` does, when it next records the durable step `step`.

        The agent does not receive the result of the step in this attempt.

        Args:
            step: Name of the step.
            ordinal: Number of the step among the steps of this name in the turn, from 1.
        """
        self._crash_keys.add(f"{step}#{ordinal}")

    async def _open(self, stack: AsyncExitStack) -> None:
        app, server = self.a2a.celery, await asyncio.to_thread(shared_server)
        prefix = f"tester-{uuid4().hex}"
        loaded_settings = simulated_settings(app, server.store_url, prefix, self._owner, self._changes)
        self._settings, self._keys = loaded_settings.settings, Keys(prefix)
        publisher = InProcessPublisher(app, prefix, asyncio.get_running_loop(), self._execute)
        stack.enter_context(memory_broker(app))
        stack.enter_context(self.a2a.simulation(loaded_settings, publisher))
        self._store = SimulatedStore(self._settings, self.clock)
        self._agent_worker = self.a2a.worker()
        stack.callback(setattr, self._agent_worker, "simulated", None)
        self._agent_worker.simulated = worker_of_thread
        stack.push_async_callback(self._stop_workers)
        for _ in range(self._worker_count):
            await self._start_worker()
        asgi = build_asgi(
            app, self.a2a.agents, loaded_settings.settings, self.clock, publisher=publisher, store=self._store
        )
        await stack.enter_async_context(asgi.router.lifespan_context(asgi))
        headers = {OWNER_HEADER: self._owner} if self._owner else None
        http = await stack.enter_async_context(httpx.AsyncClient(transport=InProcessTransport(asgi), timeout=None))
        url = f"{URL}/agents/{self.agent.name}/"
        self.client = await stack.enter_async_context(RemoteAgent(url, http=http, headers=headers))
        self._roles = self._watcher_roles(publisher)
        ticking = asyncio.create_task(self._tick_forever(), name="a2a-simulated-watcher")
        stack.push_async_callback(_cancel_and_wait, ticking)

    def _watcher_roles(self, publisher: InProcessPublisher) -> list[Role]:
        store, keys, clock = self._store, self._keys, self.clock
        results = NoResults(store, keys, self.a2a.celery)
        runs = RunPublisher(publisher, store, keys, self._settings, clock)
        service = TaskService(self.a2a.agents, self._settings, store, keys, runs)
        feature_roles = [role(service) for role in ROLES]
        return [
            Recoverer(store, keys, publisher=publisher, clock=clock),
            Dispatcher(store, keys, publisher, self._settings.redispatch_after, results, clock=clock),
            *feature_roles,  # before the end of pauses, which may be due at the same time
            PauseExpirer(store, keys),
            *feature_roles,  # after the tasks that these roles have failed
        ]

    async def _tick(self) -> None:
        for worker in tuple(self._workers):
            await worker.host.leases.tick()
        for role in self._roles:
            await role.tick()
        await asyncio.sleep(0)  # published runs begin

    async def _tick_forever(self) -> None:
        while True:
            async with self._lock:
                try:
                    await self._tick()
                except Exception:
                    logger.exception("a tick of the simulated watcher failed")
            await asyncio.sleep(TICK_INTERVAL)

    async def _start_worker(self) -> None:
        store = SimulatedStore(self._settings, self.clock, lambda keys: self._on_recorded(worker, keys))
        host = self._agent_worker.new_host(f"simulated-{uuid4().hex[:8]}", store=store, clock=self.clock)
        worker = SimulatedWorker(host, store)
        self._workers.append(worker)
        await host.start()

    async def _stop_workers(self) -> None:
        for start_task in tuple(self._scheduled):
            await _cancel_and_wait(start_task)
        for worker in self._workers:
            await worker.stop()

    def _next_worker(self) -> SimulatedWorker:
        self._turn += 1
        return self._workers[self._turn % len(self._workers)]

    def _execute(self, agent: str, ref: RunRef, options: RunOptions) -> None:
        """Execute a run on the next worker when the run is due."""
        begins_at = options.not_before
        if begins_at is None or begins_at <= self.clock.now():
            self._begin(agent, ref, options)
            return

        async def begin_later(seconds: float) -> None:
            await self.clock.sleep(seconds)
            self._begin(agent, ref, options)

        start_task = asyncio.create_task(begin_later((begins_at - self.clock.now()).total_seconds()))
        self._scheduled.add(start_task)
        start_task.add_done_callback(self._scheduled.discard)

    def _begin(self, agent: str, ref: RunRef, options: RunOptions) -> None:
        if options.not_after is not None and self.clock.now() > options.not_after:
            return  # the dispatcher rejects the run
        self._next_worker().execute(self.a2a.agents[agent], ref, options)

    async def _until_claimed(self, result: Result | None = None) -> None:
        """Wait until each run that a worker has received has been claimed or has ended.

        Raises:
            DeadlineExceeded: A run was not claimed in time. Its result is `result`.
        """
        await asyncio.sleep(0)
        try:
            async with asyncio.timeout(self._timeout):
                while self._unclaimed_runs():  # noqa: ASYNC110
                    await asyncio.sleep(CLAIM_POLL_INTERVAL)  # a run reports its claim to no one
        except TimeoutError:
            text = f"no worker began the run {', '.join(self._unclaimed_runs())} within {self._timeout:g} s"
            raise DeadlineExceeded(text, result or Result()) from None

    def _unclaimed_runs(self) -> list[str]:
        """Return the names of the runs that workers have received and not claimed."""
        return [active.ref.name for worker in self._workers for active in worker.active if not active.is_claimed]

    def _on_recorded(self, worker: SimulatedWorker, keys: list[str]) -> None:
        crashing = self._crash_keys.intersection(keys)
        if not crashing or worker not in self._workers:
            return
        self._crash_keys -= crashing
        self._workers.remove(worker)
        worker.disconnect()
        crash_task = asyncio.create_task(self._crash(worker), name="a2a-simulated-crash")
        self._scheduled.add(crash_task)
        crash_task.add_done_callback(self._scheduled.discard)

    async def _crash(self, worker: SimulatedWorker) -> None:
        """Kill `worker`, start another worker, and let the watcher recover the runs."""
        await self._start_worker()
        runs = await worker.kill()
        await worker.stop()
        self._crashes.update(active.ref.task_id for active in runs)
        attempts = max((self._crashes[active.ref.task_id] for active in runs), default=1)
        await self.advance(self._settings.lease_ttl + 1)
        await self.advance(delay_after(attempts) / 1_000_000)

    async def _wait_for_turn(
        self, events: AsyncGenerator[StreamResponse, None], current: Result | None = None
    ) -> Result:
        """Wait until the agent ends its turn or waits, and return the result of the turn, which begins with
        `current`."""
        builder = ResultBuilder()
        builder.add(current)
        try:
            async with asyncio.timeout(self._timeout), aclosing(events):
                async for event in events:
                    builder.add(event)
                    if await self._begins_wait(event.task if event.HasField("task") else event.status_update):
                        break
        except TimeoutError:
            result = builder.result()
            raise DeadlineExceeded(f"the agent worked for longer than {self._timeout:g} s", result) from None
        return builder.result()

    async def _begins_wait(self, update: Task | TaskStatusUpdateEvent) -> bool:
        """Return True if a new task or event shows that the agent waits; see `_is_waiting`. While the agent waits for a
        called agent that works, check again."""
        while not await self._is_waiting(update):
            called_id = _called_task_id(update)
            if called_id is None:
                return False
            await asyncio.sleep(TICK_INTERVAL)
            task = await self._read_task(update.id if isinstance(update, Task) else update.task_id)
            if task is None or _called_task_id(task) != called_id:
                return False  # the agent continues, which a later event shows
            update = task
        return True

    async def _is_waiting(self, update: Task | TaskStatusUpdateEvent) -> bool:
        """Return True if a task or event shows that the agent waits for a signal, for more than `SHORT_WAIT`, or for a
        called agent that waits."""
        if update.status.state != WORKING:
            return False
        if called_id := _called_task_id(update):
            called = await self._read_task(called_id)
            return called is not None and await self._is_waiting(called)
        if _own_metadata(update, WAITS_FOR):
            return True
        time = _own_metadata(update, CONTINUES_AT) or _own_metadata(update, NEXT_ATTEMPT_AT)
        return bool(time) and datetime.fromisoformat(time) > self.clock.now() + SHORT_WAIT

    async def _read_task(self, task_id: str) -> Task | None:
        """Return the task of any agent of the app without its messages and artifacts, or None if there is none."""
        reading = read_task(self._keys, None, task_id, history_length=0, artifacts=False, resolve_blobs=False)
        stored = await self._store.run(reading)
        return stored and stored[0]


def _own_metadata(update: Task | TaskStatusUpdateEvent, key: str) -> str:
    """Return the value of the key `key` of this package in the metadata of a task or event, or "" if it is unset."""
    name = NAMESPACE + key
    return str(update.metadata[name]) if name in update.metadata else ""


def _called_task_id(update: Task | TaskStatusUpdateEvent) -> str | None:
    """Return the id of the task of the called agent for which an agent waits, or None if the agent waits for none."""
    kind, task_id = kind_of_signal(_own_metadata(update, WAITS_FOR))
    return None if kind == "signal" else task_id


def _answer(result: Result, content: Content) -> Message:
    """Return the message that answers the task of `result`."""
    message = Session(result.context_id).message(content)
    message.task_id = result.task_id
    return message


async def _cancel_and_wait(task: asyncio.Task[None]) -> None:
    """Cancel an asyncio task, and wait until it has ended."""
    task.cancel()
    await asyncio.wait({task})
