"""`a2a.call` without workers, with agents that the tests control: sending, polling, cancelling and giving up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime
from typing import Any
from unittest.mock import Mock

import pytest
from celery import Celery
from celery.contrib.testing.mocks import TaskMessage
from celery.worker import state as worker_state
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from a2a_celery.client import AgentUnreachable, CallRefused, RemoteError
from a2a_celery.client.calling import (
    CallTask,
    Remote,
    Webhook,
    call_task,
    cancel_task,
    worker,
)
from a2a_celery.client.calling.client_loop import ClientLoops
from a2a_celery.client.calling.worker import CallRequest, RevocationMonitor, a2a_wake
from a2a_celery.client.result import Result
from tests.support.processes.serving import serve_app

URL = "https://agents.example.com/a"
NOW = 1_000_000.0
LONG_SECRET = "0123456789abcdef0123456789abcdef"
STEP = "f2f2cbd0-8c94-4b3e-9f0e-0d1f8c0e5a11"


@pytest.fixture
def app() -> Iterator[Celery]:
    app = Celery("callers", broker="memory://", backend="cache+memory://", set_as_current=False)
    yield app
    app.close()


@pytest.fixture
def call(app: Celery) -> CallTask:
    return call_task(app, remotes={"research": Remote(URL, bearer="hush"), "plain": URL})


@pytest.fixture
def short_polls(app: Celery) -> None:
    """Make steps poll their tasks every 10 ms, a third of the broker's visibility timeout."""
    app.conf.broker_transport_options = {"visibility_timeout": 0.03}


@pytest.mark.parametrize(
    ("kwargs", "is_redelivered", "cancel_options"),
    [
        ({"task_id": "asked"}, True, {"task_id": "asked"}),
        ({"task_id": "asked", "progress": {"began": NOW}}, False, {"task_id": "asked"}),
        ({"task_id": "asked"}, False, None),
        ({"progress": {"began": NOW, "task_id": "t"}}, False, {"task_id": "t"}),
        ({"context_id": "c"}, True, {"content": ["seven"], "context_id": "c"}),
    ],
)
def test_a_revoked_step_cancels_the_task_that_it_is_about(
    monkeypatch: pytest.MonkeyPatch, app: Celery, call: CallTask, kwargs: Any, is_redelivered: bool, cancel_options: Any
) -> None:
    """The cancellation repeats the step's message only to find an unknown task, and never sends it as an additional
    message."""
    cancellations: list[dict[str, Any]] = []
    monkeypatch.setattr(worker, "publish_cancel", lambda task, info, **kwargs: cancellations.append(kwargs))
    message = TaskMessage("a2a.call", STEP, args=["seven"], kwargs={"url": URL, **kwargs})
    message.delivery_info = {"redelivered": is_redelivered}

    request = CallRequest(message, app=app, task=call, eventer=None)

    monkeypatch.setattr("celery.worker.request.revoked_tasks", {STEP})
    assert request.revoked()
    if cancel_options is not None and "content" in cancel_options:
        cancel_options = {**cancel_options, "message_id": call.message_id_of(STEP), "celery_id": STEP}
    assert cancellations == ([] if cancel_options is None else [{"url": URL, **cancel_options}])


@pytest.mark.parametrize("supports_push", [True, False])
async def test_the_cancellation_of_a_step_with_a_webhook_repeats_the_steps_request(
    monkeypatch: pytest.MonkeyPatch, app: Celery, supports_push: bool
) -> None:
    """An agent with an idempotency window refuses a message that has a known id and differs from the first message."""
    call = call_task(app, webhook=Webhook("https://me.example.com/a2a", LONG_SECRET))
    request_bodies, cancellations, canceled_tasks = [], [], []

    async def agent(request: Request) -> Response:
        if "well-known" in request.url.path:
            return card_at(request)
        if request.url.path.endswith(":cancel"):
            canceled_tasks.append(request.url.path)
            return JSONResponse({"id": "t", "status": {"state": "TASK_STATE_CANCELED"}})
        body = await request.json()
        if "taskPushNotificationConfig" in body["configuration"] and not supports_push:
            error_info = {
                "@type": "type.googleapis.com/google.rpc.ErrorInfo",
                "reason": "PUSH_NOTIFICATION_NOT_SUPPORTED",
            }
            return JSONResponse({"error": {"code": 400, "message": "no", "details": [error_info]}}, 400)
        request_bodies.append(body)
        return JSONResponse({"task": {"id": "t", "status": {"state": "TASK_STATE_COMPLETED"}}})

    async with serve_app(Starlette(routes=[Route("/{path:path}", agent, methods=["GET", "POST"])])) as url:
        await asyncio.to_thread(lambda: call.s(url, "hello").apply(task_id=STEP).get())
        monkeypatch.setattr(worker, "publish_cancel", lambda task, info, **kwargs: cancellations.append(kwargs))
        message = TaskMessage("a2a.call", STEP, args=["hello"], kwargs={"url": url})
        message.delivery_info = {"redelivered": True}
        monkeypatch.setattr("celery.worker.request.revoked_tasks", {STEP})
        assert CallRequest(message, app=app, task=call, eventer=None).revoked()
        await asyncio.to_thread(lambda: call.canceler.apply(kwargs=cancellations[0]).get())

    first, repeated = request_bodies
    assert repeated == first
    assert ("taskPushNotificationConfig" in first["configuration"]) is supports_push
    assert canceled_tasks == ["/tasks/t:cancel"]


@pytest.fixture
def retry_received_early(app: Celery, call: CallTask) -> Iterator[CallRequest]:
    """Request of a retry that the worker received before the first execution of the step ended."""

    def request(**headers: Any) -> CallRequest:
        message = TaskMessage("a2a.call", STEP, args=["seven"], kwargs={"url": URL}, **headers)
        return CallRequest(message, app=app, task=call, eventer=None)

    worker_state.reset_state()
    first, retry = request(), request(eta=datetime(2100, 1, 1, tzinfo=UTC).isoformat())
    worker_state.task_reserved(first)
    worker_state.task_scheduled(retry)
    worker_state.task_ready(first)  # removes the id, which both requests have
    yield retry
    worker_state.reset_state()


def test_a_post_ends_the_wait_of_a_retry_that_was_received_early(retry_received_early: CallRequest) -> None:
    consumer = Mock()
    consumer.timer.call_after.side_effect = lambda delay, function, args: function(*args)

    assert a2a_wake(Mock(consumer=consumer), STEP) == {"ok": "executed"}

    consumer.apply_eta_task.assert_called_once_with(retry_received_early)


def test_a_revoke_ends_the_wait_of_a_retry_that_was_received_early(retry_received_early: CallRequest) -> None:
    consumer = Mock()
    consumer.timer.call_repeatedly.side_effect = lambda interval, function, args: function(*args)
    worker_state.revoked.add(STEP)

    RevocationMonitor(consumer).start(consumer)

    consumer.apply_eta_task.assert_called_once_with(retry_received_early)


@pytest.mark.usefixtures("short_polls")
async def test_an_eager_step_waits_for_its_agent_and_sends_once(app: Celery, call: CallTask) -> None:
    request_bodies, states = [], iter(["WORKING", "WORKING", "COMPLETED"])

    async def agent(request: Request) -> Response:
        if "well-known" in request.url.path:
            interface = {"url": str(request.base_url), "protocolBinding": "HTTP+JSON", "protocolVersion": "1.0"}
            return JSONResponse({"name": "a", "version": "1", "supportedInterfaces": [interface]})
        task = {"id": "t", "status": {"state": f"TASK_STATE_{next(states)}"}}
        if request.method == "POST":
            request_bodies.append(await request.json())
            return JSONResponse({"task": task})
        return JSONResponse(task)

    async with serve_app(Starlette(routes=[Route("/{path:path}", agent, methods=["GET", "POST"])])) as url:
        result = await asyncio.to_thread(lambda: call.s(url, "hello").apply(task_id=STEP).get())

    assert (result["state_name"], result["task_id"]) == ("COMPLETED", "t")
    [request] = request_bodies
    assert request["message"]["messageId"] == call.message_id_of(STEP)
    assert request["configuration"]["returnImmediately"]


@pytest.mark.usefixtures("short_polls")
@pytest.mark.parametrize(
    "look",
    [
        Response(status_code=401),
        Response("<html>"),
        JSONResponse({"error": {"code": 400, "status": "INVALID_ARGUMENT", "details": [
            {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "UNSUPPORTED_OPERATION"}]}}, 400),
    ],
    ids=["credentials", "garbage", "refusal"],
)  # fmt: skip
async def test_a_step_that_can_no_longer_poll_cancels_its_task(
    monkeypatch: pytest.MonkeyPatch, call: CallTask, look: Response
) -> None:
    """The cancellation is published before the step ends, because the prefork child may exit after the step."""
    cancellations: list[dict[str, Any]] = []
    monkeypatch.setattr(cancel_task, "Thread", UnscheduledThread)
    monkeypatch.setattr(call.canceler, "apply_async", lambda *, kwargs: cancellations.append(kwargs))

    async def agent(request: Request) -> Response:
        if "well-known" in request.url.path:
            return card_at(request)
        return JSONResponse({"task": WORKING}) if request.method == "POST" else look

    async with serve_app(Starlette(routes=[Route("/{path:path}", agent, methods=["GET", "POST"])])) as url:
        step_result = await asyncio.to_thread(lambda: call.s(url, "hello").apply(task_id=STEP))

    assert isinstance(step_result.result, RemoteError)
    assert cancellations == [{"url": url, "task_id": "t"}]


class UnscheduledThread:
    """Thread that runs only while another thread waits for it, as the last thread of an exiting process."""

    def __init__(self, target: Callable[[], None], **_: Any) -> None:
        self._target = target

    def start(self) -> None:
        """Start nothing."""

    def join(self, timeout: float) -> None:
        """Run the thread if the caller waits."""
        if timeout > 0:
            self._target()


WORKING = {"id": "t", "status": {"state": "TASK_STATE_WORKING"}}


def card_at(request: Request) -> Response:
    """Return an agent card with the base URL of the request."""
    interface = {"url": str(request.base_url), "protocolBinding": "HTTP+JSON", "protocolVersion": "1.0"}
    return JSONResponse({"name": "a", "version": "1", "supportedInterfaces": [interface]})


@pytest.mark.usefixtures("short_polls")
async def test_an_agent_that_drips_holds_no_slot_for_ever(call: CallTask) -> None:
    call.loops = ClientLoops(call_timeout=0.2)

    async def drops() -> AsyncIterator[bytes]:
        while True:
            yield b" "
            await asyncio.sleep(0.05)

    async def agent(request: Request) -> Response:
        return card_at(request) if "well-known" in request.url.path else StreamingResponse(drops())

    async with serve_app(Starlette(routes=[Route("/{path:path}", agent, methods=["GET", "POST"])])) as url:
        step = call.s(url, "hello", unreachable_for=0.1)
        step_result = await asyncio.wait_for(asyncio.to_thread(lambda: step.apply(task_id=STEP)), 20)

    assert isinstance(step_result.result, AgentUnreachable)
    assert "sent no complete response within 0.2 s" in str(step_result.result)


async def test_cookies_of_one_remote_are_not_sent_by_another() -> None:
    requests: list[tuple[str, str]] = []

    async def agent(request: Request) -> Response:
        caller = request.headers["authorization"]
        requests.append((caller, request.headers.get("cookie", "")))
        answer = card_at(request) if "well-known" in request.url.path else JSONResponse(WORKING)
        answer.set_cookie("session", caller.removeprefix("Bearer "))
        return answer

    async with serve_app(Starlette(routes=[Route("/{path:path}", agent, methods=["GET", "POST"])])) as url:
        calls = ClientLoops().current()

        async def look(remote: Remote) -> Result:
            async with calls.agent(remote) as client:
                return await client.get("t")

        for remote in (Remote(url, bearer="ann"), Remote(url, bearer="bob")):
            await asyncio.to_thread(calls.run, look(remote))

    assert requests == [("Bearer ann", "")] * 2 + [("Bearer bob", "")] * 2


@pytest.mark.parametrize("has_message", [True, False])
async def test_a_copy_of_an_answer_finds_the_task_that_it_has_ended(call: CallTask, has_message: bool) -> None:
    """Simulate a worker that was killed after the agent received the answer and before the result was stored."""
    error_info = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "UNSUPPORTED_OPERATION"}
    history = [{"messageId": call.message_id_of(STEP if has_message else "another")}]

    async def agent(request: Request) -> Response:
        if "well-known" in request.url.path:
            return card_at(request)
        if request.method == "POST":
            return JSONResponse({"error": {"code": 400, "message": "It has ended.", "details": [error_info]}}, 400)
        return JSONResponse({"id": "t", "status": {"state": "TASK_STATE_COMPLETED"}, "history": history})

    async with serve_app(Starlette(routes=[Route("/{path:path}", agent, methods=["GET", "POST"])])) as url:
        step_result = await asyncio.to_thread(lambda: call.s(url, "seven", task_id="t").apply(task_id=STEP))

    if has_message:
        assert step_result.get()["state_name"] == "COMPLETED"
    else:
        assert isinstance(step_result.result, CallRefused)


@pytest.mark.usefixtures("short_polls")
@pytest.mark.parametrize("question", ["Which colour?", "How many?"], ids=["another question", "asked once more"])
async def test_a_question_that_a_step_answers_is_no_answer_to_it(call: CallTask, question: str) -> None:
    """a2a-js first responds with the stored task, and continues the task afterwards."""
    states = iter([("How many?", 1), ("How many?", 1), ("How many?", 1), (question, 2)])

    async def agent(request: Request) -> Response:
        if "well-known" in request.url.path:
            return card_at(request)
        text, second = next(states)
        status = {
            "state": "TASK_STATE_INPUT_REQUIRED",
            "timestamp": f"2030-01-01T00:00:0{second}Z",
            "message": {"messageId": "q", "role": "ROLE_AGENT", "parts": [{"text": text}]},
        }
        task = {"id": "t", "status": status}
        return JSONResponse({"task": task} if request.method == "POST" else task)

    async with serve_app(Starlette(routes=[Route("/{path:path}", agent, methods=["GET", "POST"])])) as url:
        step = call.s(url, "seven", task_id="t", on_interrupt="return")
        answer = await asyncio.to_thread(lambda: step.apply(task_id=STEP).get())

    assert answer["text"] == question
    assert list(states) == []


def test_a_step_that_is_called_as_a_function_is_refused(call: CallTask) -> None:
    with pytest.raises(TypeError, match="is a step"):
        call("hello", url=URL)


async def test_credentials_go_with_each_request_and_the_connection_is_shared() -> None:
    requests: list[tuple[str, str, str]] = []

    async def agent(request: Request) -> Response:
        requests.append(
            (request.url.path, request.headers.get("authorization", ""), request.headers.get("x-fresh", ""))
        )
        if request.method == "GET" and "well-known" in request.url.path:
            interface = {"url": str(request.base_url), "protocolBinding": "HTTP+JSON", "protocolVersion": "1.0"}
            return JSONResponse({"name": "a", "version": "1", "supportedInterfaces": [interface]})
        return JSONResponse({"id": "t", "status": {"state": "TASK_STATE_WORKING"}})

    fresh = iter("123456789")
    async with serve_app(Starlette(routes=[Route("/{path:path}", agent, methods=["GET", "POST"])])) as url:
        remote = Remote(url, headers=lambda: {"X-Fresh": next(fresh)}, bearer="hush")
        calls = ClientLoops().current()

        async def look() -> Result:
            async with calls.agent(remote) as client:
                return await client.get("t")

        def call_twice() -> list[Result]:
            return [calls.run(look()), calls.run(look())]

        results = await asyncio.to_thread(call_twice)

    assert [result.state_name for result in results] == ["WORKING", "WORKING"]
    assert [path for path, _, _ in requests] == ["/.well-known/agent-card.json", "/tasks/t", "/tasks/t"]
    assert {bearer for _, bearer, _ in requests} == {"Bearer hush"}
    assert len({token for _, _, token in requests}) == 3, "asked for each request anew"
