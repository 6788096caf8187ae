"""Sessions, deadlines, cancellation and credentials of `RemoteAgent`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from a2a.client import ClientCallContext, ClientCallInterceptor
from a2a.client.interceptors import AfterArgs, BeforeArgs
from a2a.types import (
    APIKeySecurityScheme,
    GetTaskRequest,
    Message,
    Part,
    SecurityScheme,
    Task,
    TaskState,
    TaskStatus,
    a2a_pb2_grpc,
)
from a2a.utils.errors import A2AError, TaskNotFoundError
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from a2a_celery.client import (
    CallRefused,
    DeadlineExceeded,
    RemoteAgent,
    ResponseLost,
    Result,
    Session,
    state_name,
)
from a2a_celery.client.calling import Remote
from a2a_celery.client.connection.transports import Credentials, grpc_address
from a2a_celery.client.connection.turn_stream import SILENCE_TIMEOUT
from a2a_celery.errors import ConfigError
from tests.support.agents.basic import card
from tests.support.agents.states import States
from tests.support.certificates import Authority
from tests.support.clocks import ManualClock
from tests.support.processes.grpc_agent import grpc_agent
from tests.support.processes.plain_server import Steps, plain_server
from tests.support.waiting import eventually_async


@pytest.fixture
async def states() -> AsyncIterator[str]:
    async with plain_server(States()) as url:
        yield url


class TestSessions:
    async def test_one_is_taken_up_again_elsewhere(self, states: str) -> None:
        async with RemoteAgent(states) as agent:
            session = agent.session()
            question = await session.send("INPUT_REQUIRED")
            session_json = json.dumps(session.to_dict())
        async with RemoteAgent(states) as agent:
            session = agent.session(json.loads(session_json))
            answer_result = await session.send("seven")

        assert (answer_result.task_id, answer_result.text) == (question.task_id, "after seven")

    async def test_the_next_task_refers_to_the_last(self, states: str) -> None:
        async with RemoteAgent(states) as agent:
            session = agent.session()
            first = await session.send("COMPLETED")
            second = await session.send("COMPLETED")
            raw = (await agent.get(second.task_id)).raw

        assert isinstance(raw, Task)
        assert second.task_id != first.task_id
        assert second.context_id == first.context_id
        assert list(raw.history[0].reference_task_ids) == [first.task_id]

    async def test_waiting_for_an_ended_task_returns_it(self, states: str) -> None:
        async with RemoteAgent(states) as agent:
            session = agent.session()
            await session.send("FAILED")
            assert (await agent.session(session.to_dict()).wait()).text == "FAILED it is"

    async def test_a_session_continues_after_its_question_was_cancelled_elsewhere(self, states: str) -> None:
        async with RemoteAgent(states) as agent:
            session = agent.session()
            question = await session.send("INPUT_REQUIRED")
            await agent.cancel(question.task_id)
            with pytest.raises(A2AError, match="terminal"):
                await session.send("seven")

            assert (session.task_id, state_name(session.state)) == (question.task_id, "CANCELED")
            await session.send("COMPLETED")
        assert (session.context_id, state_name(session.state)) == (question.context_id, "COMPLETED")

    async def test_a_session_continues_after_its_question_was_deleted(self, states: str) -> None:
        async with RemoteAgent(states) as agent:
            session = agent.session(Session("c", "deleted", TaskState.TASK_STATE_INPUT_REQUIRED))
            with pytest.raises(TaskNotFoundError):
                await session.send("seven")

            assert not session.is_interrupted
            await session.send("COMPLETED")
        assert (session.context_id, state_name(session.state)) == ("c", "COMPLETED")

    async def test_without_a_task_there_is_nothing_to_wait_for(self) -> None:
        async with RemoteAgent("http://127.0.0.1:1") as agent:
            for ask in (agent.session().wait, agent.session().cancel):
                with pytest.raises(ValueError, match="no task yet"):
                    await ask()

    def test_an_invalid_session_is_refused(self) -> None:
        with pytest.raises(ValueError, match="not a session"):
            RemoteAgent("http://127.0.0.1:1").session({"context_id": "c"})
        assert RemoteAgent("http://127.0.0.1:1").session(Session("c")).context_id == "c"

    async def test_submitting_waits_for_nothing(self) -> None:
        async with plain_server(Steps()) as url, RemoteAgent(url) as agent:
            result = await agent.submit("wait")

            assert result.stop_reason is None
            assert (await agent.cancel(result.task_id)).state_name == "CANCELED"

    @pytest.mark.parametrize(
        "content", ["COMPLETED", [Part(text="COMPLETED")], Message(message_id="m", parts=[Part(text="COMPLETED")])]
    )
    async def test_a_message_without_a_session(self, states: str, content: Any) -> None:
        async with RemoteAgent(states) as agent:
            submit_result = await agent.submit(content)
            stream_result = Result.of(*[event async for event in agent.stream(content)])
            tasks = [(await agent.get(result.task_id)).raw for result in (submit_result, stream_result)]

        assert submit_result.task_id != stream_result.task_id
        for task in tasks:
            assert isinstance(task, Task)
            assert [part.text for part in task.history[0].parts] == ["COMPLETED"]

    async def test_content_that_no_message_can_carry(self) -> None:
        async with RemoteAgent("http://127.0.0.1:1") as agent:
            with pytest.raises(TypeError, match="cannot carry"):
                await agent.submit(object())  # type: ignore[arg-type]
            with pytest.raises(TypeError, match="cannot carry"):
                agent.stream(object())  # type: ignore[arg-type]

    @pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON"])
    @pytest.mark.parametrize(
        "content", [{"x": float("nan")}, Message(metadata={"x": float("inf")})], ids=["nan", "inf"]
    )
    async def test_a_number_that_no_message_can_carry(self, states: str, binding: str, content: Any) -> None:
        async with RemoteAgent(states, transports=[binding]) as agent:
            for call in (agent.submit(content), agent.session().send(content)):
                with pytest.raises(TypeError, match="a message cannot carry this value"):
                    await call


class TestEnds:
    async def test_a_deadline_leaves_the_task_alone(self) -> None:
        clock = ManualClock()
        async with plain_server(Steps()) as url, RemoteAgent(url, clock=clock) as agent:
            session = agent.session()
            waiting_call = asyncio.create_task(session.send("wait", deadline=4))
            await eventually_async(is_working(session))
            clock.advance(4)
            with pytest.raises(DeadlineExceeded, match=r"longer than 4 s") as exc_info:
                await waiting_call

            assert exc_info.value.result.state_name == "WORKING"
            assert exc_info.value.result.task_id == session.task_id
            assert isinstance(exc_info.value, TimeoutError)
            waiting_call = asyncio.create_task(session.wait(deadline=1))
            await clock.until_waiting(1, SILENCE_TIMEOUT)
            clock.advance(1)
            with pytest.raises(DeadlineExceeded):
                await waiting_call
            assert (await agent.get(session.task_id)).stop_reason is None
            assert (await session.cancel()).state_name == "CANCELED"

    async def test_a_cancel_ends_a_blocking_call(self) -> None:
        async with plain_server(Steps()) as url, RemoteAgent(url) as agent:
            session = agent.session()
            waiting_call = asyncio.create_task(session.send("wait"))
            await eventually_async(is_working(session))

            await agent.cancel(session.task_id)

            assert (await waiting_call).state_name == "CANCELED"

    async def test_cancel_of_an_ended_task_returns_the_task(self, states: str) -> None:
        async with RemoteAgent(states) as agent:
            session = agent.session()
            await session.send("COMPLETED")

            assert (await session.cancel()).state_name == "COMPLETED"

    async def test_nothing_can_be_done_with_a_task_that_never_was(self, states: str) -> None:
        async with RemoteAgent(states) as agent:
            for ask in (agent.get, agent.cancel):
                with pytest.raises(TaskNotFoundError):
                    await ask("nothing")

    @pytest.mark.parametrize("cancel_on_exit", [True, False])
    async def test_a_cancelled_caller_cancels_the_task_with_the_option(self, cancel_on_exit: bool) -> None:
        async with plain_server(Steps()) as url, RemoteAgent(url) as agent:
            session = agent.session()
            waiting_call = asyncio.create_task(session.send("wait", cancel_on_exit=cancel_on_exit))
            await eventually_async(is_working(session))

            waiting_call.cancel()
            with suppress(asyncio.CancelledError):
                await waiting_call

            stored_result = await agent.get(session.task_id)
            assert stored_result.state_name == ("CANCELED" if cancel_on_exit else "WORKING")
            await agent.cancel(session.task_id)

    async def test_a_deadline_cancels_the_task_with_the_option(self) -> None:
        clock = ManualClock()
        async with plain_server(Steps()) as url, RemoteAgent(url, clock=clock) as agent:
            session = agent.session()
            session.update(await agent.submit(session.message("wait")))
            waiting_call = asyncio.create_task(session.wait(deadline=1, cancel_on_exit=True))
            await clock.until_waiting(1, SILENCE_TIMEOUT)
            clock.advance(1)
            with pytest.raises(DeadlineExceeded):
                await waiting_call

            assert (await agent.get(session.task_id)).state_name == "CANCELED"

    async def test_leaving_a_stream_early_cancels_the_task(self) -> None:
        async with plain_server(Steps()) as url, RemoteAgent(url) as agent:
            session = agent.session()
            async with aclosing(session.stream("wait", cancel_on_exit=True)) as events:
                async for _ in events:
                    if session.state == 2:
                        break

            assert (await agent.get(session.task_id)).state_name == "CANCELED"


class SlowAgent:
    """Server that responds to a message after the test has set `responds`. Other calls are answered at once.

    Attributes:
        received: Event that is set when the server has received a message.
        methods: Methods of all calls.
    """

    def __init__(self, streaming: bool) -> None:
        self.received, self.responds = asyncio.Event(), asyncio.Event()
        self.methods: list[str] = []
        self._streaming = streaming

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            interface = {"url": "http://a", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
            capabilities = {"streaming": self._streaming}
            return httpx.Response(
                200, json={"name": "slow", "capabilities": capabilities, "supportedInterfaces": [interface]}
            )
        call = json.loads(request.content)
        self.methods.append(call["method"])
        task = {"id": "t", "contextId": "c", "status": {"state": "TASK_STATE_WORKING"}}
        if not call["method"].startswith("Send"):
            return httpx.Response(200, json={"jsonrpc": "2.0", "id": call["id"], "result": task})
        self.received.set()
        await self.responds.wait()
        response = {"jsonrpc": "2.0", "id": call["id"], "result": {"task": task}}
        if self._streaming:
            headers = {"Content-Type": "text/event-stream"}
            return httpx.Response(200, headers=headers, text=f"data: {json.dumps(response)}\n\n")
        return httpx.Response(200, json=response)


@pytest.mark.parametrize("end", ["deadline", "cancelled caller"])
@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("answers", [True, False], ids=["answer", "new message"])
async def test_the_task_is_canceled_also_before_its_first_event(end: str, streaming: bool, answers: bool) -> None:
    """An answer contains the id of its task. The id of a new task is in the first response."""
    server, clock = SlowAgent(streaming), ManualClock()
    http = httpx.AsyncClient(transport=httpx.MockTransport(server))
    async with http, RemoteAgent("http://a", http=http, clock=clock) as agent:
        session = agent.session({"version": 1, "context_id": "c", "task_id": "t", "state": 6} if answers else None)
        sending = asyncio.create_task(session.send("yes", deadline=1, cancel_on_exit=True))
        await server.received.wait()

        if end == "deadline":
            clock.advance(1)
        else:
            sending.cancel()
        if not answers:
            server.responds.set()

        with pytest.raises(DeadlineExceeded if end == "deadline" else asyncio.CancelledError) as exc_info:
            await sending
    assert server.methods[-1] == "CancelTask"
    assert not isinstance(exc_info.value, DeadlineExceeded) or exc_info.value.result.task_id == "t"


def is_working(session: Session) -> Callable[[], Any]:
    """Return a function that returns True if the session's task is working."""

    async def is_so() -> bool:
        return session.state == 2

    return is_so


class RecordedHeaders:
    """Middleware that records the headers of requests by path. If `refuse` is set, all responses have this status."""

    def __init__(self, refuse: int = 0) -> None:
        self.headers: dict[str, list[Mapping[str, str]]] = {}
        self._refuse = refuse

    def __call__(self, asgi: ASGIApp) -> ASGIApp:
        async def record_headers(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "http":
                self.headers.setdefault(scope["path"], []).append(Request(scope).headers)
                if self._refuse and scope["method"] == "POST":
                    await Response(status_code=self._refuse)(scope, receive, send)
                    return
            await asgi(scope, receive, send)

        return record_headers


class TestCredentials:
    async def test_they_go_with_every_request(self) -> None:
        recorded_headers, tokens = RecordedHeaders(), iter(range(10))

        async def fresh() -> dict[str, str]:
            return {"X-Token": str(next(tokens))}

        async with plain_server(States(), around=recorded_headers) as url:
            for credentials in ({"headers": fresh}, {"bearer": "b"}, {"api_key": "k"}, {"headers": {"X-A": "1"}}):
                async with RemoteAgent(url, **credentials) as agent:  # type: ignore[arg-type]
                    await agent.session().send("COMPLETED")

        for path in ("/.well-known/agent-card.json", "/"):
            first, second, third, fourth = recorded_headers.headers[path]
            assert first["x-token"] in {"0", "1"}
            assert second["authorization"] == "Bearer b"
            assert third["x-api-key"] == "k"
            assert fourth["x-a"] == "1"

    async def test_an_api_key_is_sent_in_the_place_of_the_card(self) -> None:
        keyed_card = card("keyed")
        scheme = APIKeySecurityScheme(location="header", name="X-Acme-Key")
        keyed_card.security_schemes["key"].CopyFrom(SecurityScheme(api_key_security_scheme=scheme))
        assert await Credentials(api_key="k").headers(keyed_card) == {"X-Acme-Key": "k"}

        keyed_card.security_schemes["key"].api_key_security_scheme.location = "query"
        with pytest.raises(ConfigError, match="use a header"):
            await Credentials(api_key="k").headers(keyed_card)

    @pytest.mark.parametrize(
        "options", [{"bearer": ""}, {"api_key": ""}, {"transports": ["SOAP"]}, {"transports": "GRPC"}]
    )
    def test_what_cannot_be_used_is_refused(self, options: dict[str, Any]) -> None:
        with pytest.raises(ConfigError):
            RemoteAgent("http://127.0.0.1:1", **options)

    @pytest.mark.parametrize("credentials", [{"bearer": "hidden\n"}, {"api_key": "hidden "}, {"bearer": "hidden-ö"}])
    def test_a_token_that_no_header_can_contain_is_refused(self, credentials: dict[str, str]) -> None:
        """A token that was read from a file often ends with a newline."""
        with pytest.raises(ConfigError, match="printable ASCII") as refusal:
            RemoteAgent("http://127.0.0.1:1", **credentials)  # type: ignore[arg-type]
        assert "hidden" not in str(refusal.value)

    @pytest.mark.parametrize(
        ("headers", "expected"),
        [
            ({"X-Token": "hidden\n"}, "header 'X-Token'"),
            ({"X-Token": 5}, "header 'X-Token'"),
            ({"X Token": "hidden"}, "header 'X Token'"),
            (None, "must return a mapping"),
        ],
    )
    async def test_headers_that_cannot_be_sent_are_refused(self, states: str, headers: Any, expected: str) -> None:
        async with RemoteAgent(states, headers=lambda: headers) as agent:
            with pytest.raises(ConfigError, match=expected) as refusal:
                await agent.session().send("COMPLETED")
        assert "hidden" not in str(refusal.value)

    @pytest.mark.parametrize(
        "url",
        ["127.0.0.1:1", "", "ftp://127.0.0.1", "http://", "http://x:99999", "https://ann:hidden@x", "http://x/?card=1"],
    )
    def test_an_address_is_one_of_http(self, url: str) -> None:
        with pytest.raises(ConfigError, match=r"http://|password") as refusal:
            RemoteAgent(url)
        assert "hidden" not in str(refusal.value)

    @pytest.mark.parametrize(
        ("status", "error", "expected"),
        [
            (401, CallRefused, "check the credentials"),
            (403, CallRefused, "lack permission"),
            (503, ResponseLost, "responded 503"),
        ],
    )
    @pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON"])
    async def test_an_error_status_is_reported(
        self, binding: str, status: int, error: type[Exception], expected: str
    ) -> None:
        async with (
            plain_server(States(), around=RecordedHeaders(refuse=status)) as url,
            RemoteAgent(url, transports=[binding]) as agent,
        ):
            with pytest.raises(error, match=expected):
                await agent.session().send("COMPLETED")

    async def test_an_optional_argument_may_be_none(self, states: str) -> None:
        names = "headers bearer api_key interceptors transports http timeout card cards hosts tenant"
        nothing: dict[str, Any] = dict.fromkeys(names.split())
        async with RemoteAgent(states, **nothing) as agent:
            result = await agent.session(None, context_id=None).send("COMPLETED", deadline=None)
        assert result.state_name == "COMPLETED"
        assert Remote(states, headers=None, bearer=None, api_key=None, hosts=None, tenant=None)

    async def test_a_header_of_an_interceptor_that_cannot_be_sent_is_refused(self, states: str) -> None:
        class Interceptor(ClientCallInterceptor):
            async def before(self, args: BeforeArgs) -> None:
                args.context = ClientCallContext(service_parameters={"X-Token": "hidden\n"})

            async def after(self, args: AfterArgs) -> None:
                pass

        async with RemoteAgent(states, interceptors=[Interceptor()]) as agent:
            for call in (agent.session().send("COMPLETED"), agent.session(Session("c", "t")).wait()):
                with pytest.raises(CallRefused, match="a header that cannot be sent") as refusal:
                    await call
                assert "hidden" not in str(refusal.value)

    async def test_a_client_of_the_callers_stays_the_callers(self, states: str) -> None:
        async with httpx.AsyncClient() as http:
            async with RemoteAgent(states, http=http) as agent:
                await agent.session().send("COMPLETED")
            assert not http.is_closed


class GetTaskServicer(a2a_pb2_grpc.A2AServiceServicer):
    """Service whose tasks are all completed."""

    async def GetTask(self, request: GetTaskRequest, context: Any) -> Task:
        return Task(id=request.id, status=TaskStatus(state=TaskState.TASK_STATE_COMPLETED))


@pytest.mark.parametrize("url", ["{address}", "dns:///{address}", "http://{address}", "HTTP://{address}/a2a/grpc"])
async def test_a_grpc_interface_may_have_a_url(url: str) -> None:
    async with grpc_agent(GetTaskServicer(), url=url) as agent:
        assert (await agent.get("t")).state_name == "COMPLETED"


@pytest.mark.parametrize("url", ["https://{address}", "https://{address}/a2a/grpc"])
async def test_a_grpc_interface_at_an_https_url_is_encrypted(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority.create_in(tmp_path)
    key, certificate = (path.read_bytes() for path in authority.issue("localhost", "127.0.0.1"))
    trusting = grpc.ssl_channel_credentials(authority.file.read_bytes())
    monkeypatch.setattr("grpc.ssl_channel_credentials", lambda: trusting)

    async with grpc_agent(GetTaskServicer(), url=url, tls=grpc.ssl_server_credentials([(key, certificate)])) as agent:
        assert (await agent.get("t")).state_name == "COMPLETED"


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://example.com/grpc", ("example.com:443", True)),
        ("http://[::1]", ("[::1]:80", False)),
        ("https://user@example.com:5", ("example.com:5", True)),
        ("http:5", ("http:5", None)),
        ("example.com", ("example.com", None)),
    ],
)
def test_the_address_of_a_grpc_interface(scheme: str, url: str, expected: tuple[str, bool | None]) -> None:
    address, is_secure = grpc_address(url, is_secure=scheme == "https")

    assert address == expected[0]
    assert is_secure == (expected[1] if expected[1] is not None else scheme == "https")
