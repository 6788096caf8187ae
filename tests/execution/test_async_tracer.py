"""Execution of Celery tasks on an event loop. The async tracer sends the same signals as Celery's tracer, and isolates
concurrent calls from each other."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from billiard.einfo import ExceptionInfo
from celery import Celery, Task, current_task, signals
from celery.exceptions import Ignore
from celery.utils.functional import noop
from celery.worker import state
from kombu import Message

from a2a_celery import A2A, Turn
from a2a_celery.execution.celery import async_tracer
from a2a_celery.execution.celery.async_tracer import AgentPid, AsyncTaskCall, context_of, is_wrapped, require_greenlet
from a2a_celery.execution.celery.request import RunFailed, RunRequest
from a2a_celery.execution.process.forced_stop import Stop
from a2a_celery.lifecycle import Completed, Failure, Lost, Outcome, Retried
from a2a_celery.pool import THREADS, AsyncioPool
from tests.support.waiting import LIMIT, eventually_async

SIGNALS = ("prerun", "success", "failure", "retry", "postrun", "internal_error")


@dataclass
class SignalLog:
    """Signals that were sent, each with the id of the current call."""

    signals: list[tuple[str, str]] = field(default_factory=list)

    def of(self, name: str) -> list[str]:
        return [signal for signal, call in self.signals if call == name]


@pytest.fixture
def signal_log() -> Iterator[SignalLog]:
    signal_log, receivers = SignalLog(), []
    for name in SIGNALS:

        def receive(name: str = name, sender: Any = None, task_id: str = "", **_: Any) -> None:
            current = current_task.request.id if current_task else ""
            if current and task_id not in (current, ""):
                signal_log.signals.append(("of another call", current))
            signal_log.signals.append((name, current or task_id))

        getattr(signals, f"task_{name}").connect(receive, weak=False)
        receivers.append((name, receive))
    yield signal_log
    for name, receive in receivers:
        getattr(signals, f"task_{name}").disconnect(receive)


TENANT: ContextVar[str] = ContextVar("tenant", default="none")


class TaskWithContext(Task):
    """Task class whose ``__call__`` sets a context variable, like the one that Flask's documentation recommends."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        token = TENANT.set(self.request.id)
        try:
            return self.run(*args, **kwargs)
        finally:
            assert TENANT.get() == self.request.id
            TENANT.reset(token)


PLAIN = pytest.mark.parametrize("app", ["celery.app.task:Task"], indirect=True)
"""Marker of the tests of code that Celery's tracer replaces if the task is wrapped."""


@pytest.fixture(params=["celery.app.task:Task", TaskWithContext], ids=["plain", "wrapped"])
def app(request: pytest.FixtureRequest) -> Iterator[Celery]:
    app = Celery("test", broker="memory://", set_as_current=False, task_cls=request.param)
    a2a = A2A(app)

    @a2a.agent("works", description="Works.")
    async def works(turn: Turn) -> None: ...

    a2a.worker()
    assert is_wrapped(app.tasks["a2a.works"]) == (request.param is TaskWithContext)
    yield app
    state.revoked.clear()


class ControlledRun:
    """Stand-in for a run. The test determines when the run finishes, and with which outcome."""

    def __init__(self) -> None:
        self.outcome: asyncio.Future[Outcome | None] = asyncio.get_running_loop().create_future()
        self.begun = asyncio.Event()
        self.stopped: list[Stop] = []

    def stop(self, reason: Stop) -> None:
        self.stopped.append(reason)
        self.outcome.set_result(Lost())

    async def perform(self) -> Outcome | None:
        self.tenant = TENANT.get()
        self.begun.set()
        return await self.outcome


class Calls:
    """Calls to the agent's task. The test controls the runs."""

    def __init__(self, app: Celery) -> None:
        self.task: Task = app.tasks["a2a.works"]
        self.runs: dict[str, ControlledRun] = {}
        self.answers: dict[str, Any] = {}
        self.task.begin_run = self.begin
        self.task.runs_in = lambda _node: SimpleNamespace(loop=asyncio.get_running_loop())

    def begin(self, task_id: str, run: int) -> tuple[ControlledRun, Coroutine[Any, Any, Outcome | None]]:
        assert self.task.request.args == [task_id, run]
        ending = self.runs[f"{task_id}.{run}"] = ControlledRun()
        return ending, ending.perform()

    def request(
        self, name: str, task: Task | None = None, on_ack: Callable[..., object] = noop, **embed: Any
    ) -> RunRequest:
        task = task or self.task
        task_id, _, run = name.partition(".")
        body = (
            [task_id, int(run or 1)],
            {},
            {"callbacks": None, "errbacks": None, "chain": None, "chord": None, **embed},
        )
        headers = {"id": name, "task": task.name, "ignore_result": None}
        message = Message(
            json.dumps(body).encode(), headers=headers, content_type="application/json", content_encoding="utf-8"
        )
        answers = self.answers

        class RecordingRequest(RunRequest):
            def on_success(self, failed__retval__runtime: Any, **kwargs: Any) -> None:
                answers[self.id] = failed__retval__runtime

            def revoked(self) -> bool:
                return self.id in state.revoked

        return RecordingRequest(message, app=task.app, task=task, on_ack=on_ack)

    async def wait_for_run(self, name: str) -> ControlledRun:
        await eventually_async(lambda: _is(name in self.runs), what=f"{name} begins")
        await self.runs[name].begun.wait()
        return self.runs[name]


async def _is(fact: bool) -> bool:
    return fact


@pytest.fixture
async def calls(app: Celery) -> Calls:
    return Calls(app)


async def test_concurrent_calls_do_not_mix(calls: Calls, signal_log: SignalLog) -> None:
    calls_made = [AsyncTaskCall(calls.request(name), asyncio.get_running_loop()).make() for name in ("a.1", "b.1")]
    gathering = asyncio.gather(*calls_made)
    first, second = await calls.wait_for_run("a.1"), await calls.wait_for_run("b.1")
    assert not current_task, "nothing is at hand while agents work"

    first.outcome.set_result(Completed())
    second.outcome.set_result(Failure("Not today.", "ref"))
    await gathering

    assert signal_log.of("a.1") == ["prerun", "success", "postrun"]
    assert signal_log.of("b.1") == ["prerun", "failure", "postrun"]
    assert not current_task
    has_failed, retval, seconds = calls.answers["a.1"]
    assert (has_failed, retval) == (False, "'A2A: COMPLETED'")
    assert seconds >= 0
    has_failed, einfo, _ = calls.answers["b.1"]
    assert has_failed
    assert isinstance(einfo.exception, RunFailed)


async def test_an_agent_has_the_context_of_its_task_class(calls: Calls, app: Celery) -> None:
    calls_made = [AsyncTaskCall(calls.request(name), asyncio.get_running_loop()).make() for name in ("a.1", "b.1")]
    gathering = asyncio.gather(*calls_made)
    runs = [await calls.wait_for_run(name) for name in ("a.1", "b.1")]
    for run in runs:
        run.outcome.set_result(Completed())
    await gathering

    assert [run.tenant for run in runs] == (["a.1", "b.1"] if is_wrapped(calls.task) else ["none", "none"])
    assert TENANT.get() == "none"


async def test_a_wrapped_task_needs_greenlet(calls: Calls, app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    require_greenlet(app.tasks.values())
    monkeypatch.setattr(async_tracer, "greenlet", None)
    if not is_wrapped(calls.task):
        require_greenlet(app.tasks.values())
        return

    with pytest.raises(SystemExit, match="pip install greenlet"):
        require_greenlet(app.tasks.values())


async def test_a_waiting_call_holds_no_part_of_its_message(calls: Calls) -> None:
    acknowledgements: list[Any] = []
    request = calls.request("a.1", on_ack=lambda *_: acknowledgements.append(request.message))
    message = request.message

    call = asyncio.create_task(AsyncTaskCall(request, asyncio.get_running_loop()).make())
    run = await calls.wait_for_run("a.1")

    assert acknowledgements == [message]
    assert (request.message, request.body) == (None, None)
    assert request.info()["args"] == ["a", 1]
    assert (request.request_dict["id"], request.reply_to) == ("a.1", None)
    run.outcome.set_result(Completed())
    await call
    assert calls.answers["a.1"].failed is False


async def test_a_request_without_its_message_still_has_its_values(calls: Calls) -> None:
    request = calls.request("t.1")
    request.acknowledged = True
    info_before = request.info(safe=True), request.reply_to, request.correlation_id, request.delivery_info

    request.release_if_acknowledged(vars(context_of(request)))

    info_after = request.info(safe=True), request.reply_to, request.correlation_id, request.delivery_info
    assert info_after == info_before


async def test_a_retry_is_reported_like_one_of_celery(calls: Calls, signal_log: SignalLog) -> None:
    hooks: list[str] = []
    calls.task.on_retry = lambda *_: hooks.append("on_retry")
    calls.task.after_return = lambda *_: hooks.append("after_return")
    call = asyncio.ensure_future(AsyncTaskCall(calls.request("a.1"), asyncio.get_running_loop()).make())
    (await calls.wait_for_run("a.1")).outcome.set_result(Retried(2, 4, "2030-01-01T08:00:00+00:00", "ConnectionError"))
    await call

    assert signal_log.of("a.1") == ["prerun", "retry", "postrun"]
    assert hooks == ["on_retry"]
    has_failed, einfo, _ = calls.answers["a.1"]
    assert has_failed
    retry = einfo.exception.exc
    assert str(retry) == "Retry at 2030-01-01T08:00:00+00:00: RunRetried('ConnectionError')"


async def test_an_outcome_without_an_end_is_no_failure(calls: Calls, signal_log: SignalLog) -> None:
    call = asyncio.ensure_future(AsyncTaskCall(calls.request("a.1"), asyncio.get_running_loop()).make())
    (await calls.wait_for_run("a.1")).outcome.set_result(Lost())
    await call

    assert signal_log.of("a.1") == ["prerun", "postrun"]
    has_failed, einfo, _ = calls.answers["a.1"]
    assert has_failed
    assert isinstance(einfo.exception.exc, Ignore)


async def test_a_run_that_cannot_start_is_a_failure(calls: Calls, signal_log: SignalLog) -> None:
    def begin(task_id: str, run: int) -> Any:
        raise RuntimeError("no loop")

    calls.task.begin_run = begin
    await AsyncTaskCall(calls.request("a.1"), asyncio.get_running_loop()).make()

    assert signal_log.of("a.1") == ["prerun", "failure", "postrun"]
    assert isinstance(calls.answers["a.1"][1], ExceptionInfo)


@PLAIN
async def test_an_error_outside_of_the_call_is_an_internal_error(
    calls: Calls, signal_log: SignalLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(calls.task.app.loader, "on_task_init", broken)
    with pytest.warns(RuntimeWarning, match="broken"):
        await AsyncTaskCall(calls.request("a.1"), asyncio.get_running_loop()).make()

    assert signal_log.of("a.1") == ["prerun", "postrun", "internal_error"]
    assert calls.answers["a.1"][0]


@PLAIN
async def test_a_failing_hook_does_not_change_the_outcome(
    calls: Calls, signal_log: SignalLog, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("broken")

    for hook in ("on_success", "after_return"):
        monkeypatch.setattr(calls.task, hook, broken)
    call = asyncio.ensure_future(AsyncTaskCall(calls.request("a.1"), asyncio.get_running_loop()).make())
    (await calls.wait_for_run("a.1")).outcome.set_result(Completed())
    await call

    assert signal_log.of("a.1") == ["prerun", "success", "postrun"]
    assert not calls.answers["a.1"][0]
    assert caplog.text.count("RuntimeError: broken") == 2


async def test_a_call_terminated_before_its_start_never_starts(calls: Calls, signal_log: SignalLog) -> None:
    request = calls.request("a.1")
    call = AsyncTaskCall(request, asyncio.get_running_loop())
    accept = request.on_accepted

    def terminate(pid: int, at: float) -> None:
        assert isinstance(pid, AgentPid)
        accept(pid, at)
        call.terminate()

    request.on_accepted = terminate
    await call.make()

    assert signal_log.signals == []
    assert calls.runs == {}


class Scene:
    """Pool with `limit` slots, and the requests that it receives."""

    def __init__(self, calls: Calls, limit: int) -> None:
        self.calls = calls
        self.pool = AsyncioPool(limit, app=calls.task.app)

    def apply(self, request: RunRequest, target: Callable[..., Any] = lambda: None) -> Any:
        return self.pool.apply_async(target, accept_callback=request.on_accepted, callback=request.on_success)

    async def info(self, **expected: int) -> None:
        async def has_expected_info() -> bool:
            return {name: self.pool.info[name] for name in expected} == expected

        await eventually_async(has_expected_info, what=f"the pool has {expected}")

    async def stop(self) -> None:
        await asyncio.to_thread(self.pool.on_stop)


async def test_the_pool_runs_no_more_calls_than_its_limit(calls: Calls) -> None:
    scene = Scene(calls, 1)
    for name in ("a.1", "b.1", "c.1", "d.1", "e.1"):
        scene.apply(calls.request(name))
    await calls.wait_for_run("a.1")
    await scene.info(agents=1, waiting=4)

    scene.pool.grow()
    await calls.wait_for_run("b.1")
    scene.pool.shrink()
    calls.runs["a.1"].outcome.set_result(Completed())
    await scene.info(agents=1, waiting=3)
    state.revoked.add("c.1")
    calls.runs["b.1"].outcome.set_result(Completed())
    (await calls.wait_for_run("d.1")).outcome.set_result(Completed())
    await calls.wait_for_run("e.1")
    assert "c.1" not in calls.runs, "it was revoked while it waited"
    with pytest.raises(ValueError, match="limit is 1"):
        scene.pool.shrink()

    scene.apply(calls.request("f.1"))
    await scene.info(waiting=1)
    stopping = asyncio.ensure_future(scene.stop())
    await scene.info(waiting=0)
    scene.apply(calls.request("g.1"))
    calls.runs["e.1"].outcome.set_result(Completed())
    await stopping
    assert list(calls.runs) == ["a.1", "b.1", "d.1", "e.1"]


async def test_a_run_is_terminated_alone(calls: Calls) -> None:
    scene = Scene(calls, 2)
    results = [(name, scene.apply(calls.request(name))) for name in ("a.1", "b.1")]
    await calls.wait_for_run("a.1")
    await calls.wait_for_run("b.1")
    pid = results[0][1].request.worker_pid

    scene.pool.terminate_job(pid, 15)
    results[0][1].terminate(15)

    await scene.info(agents=1)
    assert calls.runs["a.1"].stopped == [Stop.ABORT]
    assert calls.runs["b.1"].stopped == []
    with pytest.raises(NotImplementedError, match="thread"):
        scene.pool.terminate_job(int(pid), 15)
    calls.runs["b.1"].outcome.set_result(Completed())
    await scene.stop()


async def test_tasks_that_are_not_single_runs_get_a_thread(calls: Calls) -> None:
    scene, outcomes = Scene(calls, 5000), []
    link = {"task": "other", "args": [], "kwargs": {}, "options": {}}

    def do_nothing() -> None: ...

    plain_task = calls.task.app.task(name="plain", shared=False, ignore_result=True)(do_nothing)
    for request in (
        calls.request("by-hand"),
        calls.request("a.1", callbacks=[link]),
        calls.request("a.1", plain_task),
    ):
        scene.apply(request, lambda: outcomes.append(1)).wait(30)

    assert len(outcomes) == 3
    assert calls.runs == {}
    await scene.stop()


async def test_the_threads_for_such_tasks_are_limited(calls: Calls) -> None:
    scene, may_end = Scene(calls, 5000), threading.Event()
    begun: list[int] = []

    def block() -> None:
        begun.append(len(begun))
        may_end.wait(LIMIT)

    results = [scene.apply(calls.request("by-hand"), block) for _ in range(THREADS + 1)]
    await eventually_async(lambda: _is(len(begun) >= THREADS), what="each thread has a task")
    assert len(begun) == THREADS
    may_end.set()
    for result in results:
        result.wait(LIMIT)
    await scene.stop()
