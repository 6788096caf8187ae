"""Recovery of clients from lost connections and responses, with gateways that number their events and with the SDK's
server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from a2a.compat.v0_3 import a2a_v0_3_pb2_grpc
from a2a.types import AgentCard, ListTasksRequest, StreamResponse, Task, TaskState, TaskStatus, a2a_pb2_grpc
from a2a.utils.errors import TaskNotFoundError
from google.protobuf.json_format import ParseDict
from starlette.types import ASGIApp, Receive, Scope, Send

from a2a_celery.client import AgentSession, AgentUnreachable, NotConnected, RemoteAgent, ResponseLost, Result, Session
from a2a_celery.client.connection.turn_stream import MAX_BACKOFF, SILENCE_TIMEOUT
from a2a_celery.lifecycle.states import COMPLETED
from a2a_celery.store import AsyncStore, Keys
from tests.support.clients.bindings import ServedFleet, sdk_client, stream
from tests.support.clients.lossy_transports import CutsStreams, losing_answers
from tests.support.clocks import ManualClock, ShortSleepClock
from tests.support.processes.fleet import running_fleet
from tests.support.processes.grpc_agent import grpc_agent
from tests.support.processes.plain_server import Steps, plain_server
from tests.support.processes.proxy import Proxy, proxy
from tests.support.store.seeds import Seeds, chunk, status
from tests.support.waiting import LIMIT, eventually_async


@pytest.fixture(scope="module")
def served_fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedFleet]:
    with running_fleet(tmp_path_factory.mktemp("fleet")) as fleet:
        gateway = fleet.gateway(grpc=True)
        yield ServedFleet(fleet, gateway, fleet.worker(pool="threads", concurrency=8))


def chunks(events: list[StreamResponse]) -> str:
    """Return the text of all chunks in `events`. A complete task replaces the earlier text."""
    text = ""
    for event in events:
        if event.HasField("task"):
            text = "".join(part.text for artifact in event.task.artifacts for part in artifact.parts)
        text += "".join(part.text for part in event.artifact_update.artifact.parts)
    return text


async def until(condition: Callable[[], bool]) -> None:
    async def is_true() -> bool:
        return condition()

    await eventually_async(is_true)


NUMBERS = "".join(f"{number} " for number in range(20))


async def test_streams_outlive_a_gateway_that_is_killed(served_fleet: ServedFleet) -> None:
    """Kill the gateway with SIGKILL while events arrive over each binding, and restart the gateway at the same
    address. Events are recorded before, during and after the restart."""
    events_by_binding: dict[str, list[StreamResponse]] = {"JSONRPC": [], "HTTP+JSON": [], "GRPC": []}
    sessions: dict[str, AgentSession] = {}
    store = AsyncStore(served_fleet.fleet.redis.store_url)
    seeds = Seeds(store, Keys("a2a"))

    async def watch(binding: str) -> None:
        url = f"{served_fleet.url}/agents/routed"
        async with RemoteAgent(url, transports=[binding], clock=ShortSleepClock()) as agent:
            sessions[binding] = agent.session()
            async for event in sessions[binding].stream("to a queue without workers", deadline=90):
                events_by_binding[binding].append(event)

    async def kill() -> None:
        await until(lambda: all(events_by_binding.values()))
        claims = [await seeds.claim_run(session.task_id) for session in sessions.values()]

        async def write_numbers(start: int, end: int) -> None:
            for number in range(start, end):
                for claim in claims:
                    await seeds.append_events(claim, chunk(f"{number} "), written_count=number)

        await write_numbers(0, 5)
        await until(lambda: all(chunks(events) for events in events_by_binding.values()))
        await asyncio.gather(asyncio.to_thread(served_fleet.gateway.kill), write_numbers(5, 10))
        await write_numbers(10, 15)
        served_fleet.gateway = await asyncio.to_thread(
            served_fleet.fleet.gateway, grpc=True, instead_of=served_fleet.gateway
        )
        await until(lambda: all("14 " in chunks(events) for events in events_by_binding.values()))
        await write_numbers(15, 20)
        for claim in claims:
            await seeds.settle_run(claim, status(COMPLETED), written_count=20)

    await asyncio.gather(kill(), *map(watch, events_by_binding))
    await store.aclose()

    for binding, events in events_by_binding.items():
        result = sessions[binding].result
        assert (result.state_name, result.text) == ("COMPLETED", NUMBERS), binding
        assert chunks(events) == NUMBERS, binding
    for binding in ("JSONRPC", "HTTP+JSON"):  # gRPC events have no ids, so a complete task replaces missed events
        logged = await log(served_fleet, sessions[binding].task_id, "routed")
        assert events_by_binding[binding] == logged, "each event once"
    # the second task comes from the new stream or from GetTask
    assert sum(event.HasField("task") for event in events_by_binding["GRPC"]) >= 2


@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON"])
async def test_numbered_events_come_once_however_often_their_stream_is_cut(
    served_fleet: ServedFleet, binding: str
) -> None:
    line = CutsStreams(3, 0, 2, 0, 1)
    async with httpx.AsyncClient(transport=line, timeout=LIMIT) as http:
        agent = RemoteAgent(f"{served_fleet.url}/agents/pace", http=http, transports=[binding], clock=ShortSleepClock())
        session = agent.session()
        events = [event async for event in session.stream("12 0.02", deadline=60)]

    assert not line.event_counts, "it was cut so often"
    assert events == await log(served_fleet, session.task_id, "pace")
    assert session.result.state_name == "COMPLETED"


async def test_the_text_of_a_stream_that_is_cut_comes_once(served_fleet: ServedFleet) -> None:
    line = CutsStreams(3, 0, 2, 0, 1)
    async with httpx.AsyncClient(transport=line, timeout=LIMIT) as http:
        agent = RemoteAgent(f"{served_fleet.url}/agents/pace", http=http, clock=ShortSleepClock())
        session = agent.session()
        pieces = [piece async for piece in session.texts("12 0.02", deadline=60)]

    assert not line.event_counts, "it was cut so often"
    assert not any(piece.replaces for piece in pieces)
    assert "".join(pieces) == session.result.text


async def test_a_client_restarts_if_the_store_lost_its_newest_events(tmp_path: Path) -> None:
    """While the gateway is down, the store is restored without the newest events, and records other events up to later
    versions."""
    events: list[StreamResponse] = []

    async def watch(session: AgentSession) -> None:
        async for event in session.stream("hello", deadline=60):
            events.append(event)

    with running_fleet(tmp_path) as fleet:
        gateway, store = fleet.gateway(), AsyncStore(fleet.redis.store_url)
        session = RemoteAgent(f"{gateway.url}/agents/pace", clock=ShortSleepClock()).session()
        seeds = Seeds(store, Keys("a2a"))
        watch_task = asyncio.create_task(watch(session))
        await until(lambda: bool(events))
        claim = await seeds.claim_run(session.task_id, max_attempts=2)
        await seeds.append_events(claim, chunk("kept "))
        backup = await seeds.backup()
        await seeds.append_events(claim, *(chunk(f"lost {n} ") for n in range(3)), written_count=1)
        await until(lambda: chunks(events) == "kept lost 0 lost 1 lost 2 ")
        gateway.kill()
        await seeds.restore(backup)
        await seeds.settle_run(claim, *(chunk(f"other {n} ") for n in range(5)), status(COMPLETED), written_count=1)
        await asyncio.to_thread(fleet.gateway, instead_of=gateway)
        await watch_task
        await store.aclose()

    expected = "kept other 0 other 1 other 2 other 3 other 4 "
    assert (session.result.state_name, session.result.text) == ("COMPLETED", expected)
    assert chunks(events) == expected


async def log(served_fleet: ServedFleet, task_id: str, agent: str) -> list[StreamResponse]:
    """Return all events of a task from a stream that starts with the first event."""
    async with httpx.AsyncClient() as http:
        path = f"/tasks/{task_id}:subscribe"
        async with stream(http, served_fleet.gateway, path, agent=agent, Last_Event_ID="0") as frames:
            return [ParseDict(frame.data, StreamResponse()) async for frame in frames]


class TestLostAnswers:
    """Messages that reach the server, but whose responses are lost."""

    async def test_an_idempotent_agent_is_sent_it_again(self, served_fleet: ServedFleet) -> None:
        async with losing_answers(times=3) as http:
            agent = RemoteAgent(f"{served_fleet.url}/agents/once", http=http, idempotent=True, clock=ShortSleepClock())
            session = agent.session(context_id="again")

            result = await session.send("word 0.2", deadline=60)

            assert result.text.startswith("word, run 1 ")
            assert await tasks_of(served_fleet, "once", "again") == [result.task_id]

    async def test_another_is_not(self, served_fleet: ServedFleet) -> None:
        async with losing_answers() as http:
            agent = RemoteAgent(f"{served_fleet.url}/agents/echo", http=http)
            message = agent.session().message("hello")

            with pytest.raises(ResponseLost, match=message.message_id):
                async for _ in agent.stream(message, deadline=60):
                    pass
            with pytest.raises(ResponseLost):
                async with losing_answers() as losing_agent:
                    await RemoteAgent(f"{served_fleet.url}/agents/echo", http=losing_agent).submit(message)

    async def test_in_a_known_context_its_task_is_found(self, served_fleet: ServedFleet) -> None:
        async with losing_answers() as http:
            session = RemoteAgent(f"{served_fleet.url}/agents/echo", http=http).session(context_id="found")

            result = await session.send("hello", deadline=60)

            assert (result.state_name, result.text) == ("COMPLETED", "hello")
            assert await tasks_of(served_fleet, "echo", "found") == [result.task_id]

    async def test_so_is_the_task_that_it_answered(self, served_fleet: ServedFleet) -> None:
        async with RemoteAgent(f"{served_fleet.url}/agents/ask") as agent:
            question = await agent.session().send("some", deadline=60)
        async with losing_answers() as http:
            session = RemoteAgent(f"{served_fleet.url}/agents/ask", http=http).session()
            session.update(question)

            result = await session.send("7", deadline=60)

            assert (result.task_id, result.text) == (question.task_id, "7 it is")


async def tasks_of(served_fleet: ServedFleet, agent: str, context_id: str) -> list[str]:
    async with sdk_client(served_fleet.gateway, agent) as client:
        return [task.id for task in (await client.list_tasks(ListTasksRequest(context_id=context_id))).tasks]


class Plain:
    """SDK server behind a proxy whose connections the test can cut."""

    def __init__(self, steps: Steps, line: Proxy, agent: RemoteAgent) -> None:
        self.steps = steps
        self.line = line
        self.agent = agent
        self.requests = 0

    async def say(self, text: str) -> None:
        """Make the agent send `text`, and wait until the agent has sent it."""
        count = len(self.steps.sent)
        await self.steps.given.put(text)
        await until(lambda: len(self.steps.sent) > count)


@asynccontextmanager
async def plain(binding: str, *, streaming: bool = True, **options: Any) -> AsyncIterator[Plain]:
    """Run an SDK server, and yield it with a client that calls its agent through the proxy, over `binding`. `options`
    are those of `RemoteAgent`."""
    options = {"clock": ShortSleepClock(), **options}
    steps = Steps()
    plain_servers: list[Plain] = []

    def count_requests(asgi: ASGIApp) -> ASGIApp:
        async def counting_app(scope: Scope, receive: Receive, send: Send) -> None:
            for counted_server in plain_servers:
                counted_server.requests += 1
            await asgi(scope, receive, send)

        return counting_app

    async with plain_server(steps, streaming=streaming, around=count_requests) as url:
        async with RemoteAgent(url) as question:
            card = AgentCard()
            card.CopyFrom(await question.card())
        interface = next(i for i in card.supported_interfaces if i.protocol_binding == binding)
        server = urlsplit(interface.url if "//" in interface.url else f"//{interface.url}")
        with proxy((str(server.hostname), server.port or 0)) as line:
            del card.supported_interfaces[:]
            interface.url = interface.url.replace(str(server.port), str(line.port))
            card.supported_interfaces.append(interface)
            async with RemoteAgent(url, card=card, transports=[binding], **options) as agent:
                plain_servers.append(Plain(steps, line, agent))
                yield plain_servers[0]


@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON", "GRPC"])
async def test_a_cut_stream_of_the_sdks_server_is_subscribed_to_again(binding: str) -> None:
    events: list[StreamResponse] = []
    async with plain(binding) as server:
        session = server.agent.session()

        async def watch() -> Result:
            async for event in session.stream("go", deadline=60):
                events.append(event)
            return session.result

        watch_task = asyncio.create_task(watch())
        await server.say("one ")
        await until(lambda: chunks(events) == "one ")
        server.line.cut()
        await server.say("two ")
        server.line.restore()
        await until(lambda: chunks(events) == "one two ")
        await server.say("three ")
        await server.steps.given.put(None)

        result = await watch_task

    assert (result.state_name, result.text) == ("COMPLETED", "one two three ")
    assert chunks(events) == "one two three "


@pytest.mark.parametrize("binding", ["JSONRPC", "GRPC"])
async def test_text_comes_once_although_snapshots_repeat_it(binding: str) -> None:
    texts: list[str] = []
    async with plain(binding) as server:

        async def watch() -> None:
            async for piece in server.agent.session().texts("go", deadline=60):
                texts.append(piece)

        watch_task = asyncio.create_task(watch())
        await server.say("one ")
        await until(lambda: texts == ["one "])
        server.line.cut()
        await server.say("two ")
        server.line.restore()
        await until(lambda: texts == ["one ", "two "])
        await server.say("three ")
        await server.steps.given.put(None)
        await watch_task

    assert texts == ["one ", "two ", "three "]


async def test_a_cut_that_nothing_happened_in_is_not_seen() -> None:
    events: list[StreamResponse] = []
    async with plain("JSONRPC") as server:

        async def watch() -> None:
            async for event in server.agent.session().stream("go", deadline=60):
                events.append(event)

        watch_task = asyncio.create_task(watch())
        await server.say("one ")
        await until(lambda: chunks(events) == "one ")
        for _ in range(2):
            request_count = server.requests
            server.line.cut()
            server.line.restore()
            await until(lambda count=request_count: server.requests > count)  # type: ignore[misc]
        await server.steps.given.put(None)
        await watch_task

    states = [TaskState.Name(event.task.status.state) for event in events if event.HasField("task")]
    assert states in (["TASK_STATE_SUBMITTED"], ["TASK_STATE_SUBMITTED", "TASK_STATE_COMPLETED"]), (
        "or it ended just then"
    )


async def test_an_agent_without_streams_is_looked_at_again() -> None:
    async with plain("JSONRPC", streaming=False) as server:
        session = server.agent.session()
        send_task = asyncio.create_task(session.send("go", deadline=60))
        await server.say("one ")
        await until(lambda: bool(session.task_id))
        server.line.cut()
        await server.say("two ")
        server.line.restore()
        await server.steps.given.put(None)

        result = await send_task

    assert (result.state_name, result.text) == ("COMPLETED", "one two ")


async def test_a_message_that_never_left_is_sent_when_there_is_a_way() -> None:
    clock = ManualClock()
    async with plain("JSONRPC", clock=clock) as server:
        server.line.cut()
        send_task = asyncio.create_task(server.agent.session().send("go", deadline=60))
        await server.steps.given.put(None)
        for _ in range(2):  # the client retries
            clock.advance(await clock.next_wait(MAX_BACKOFF))
        last_wait = await clock.next_wait(MAX_BACKOFF)
        server.line.restore()
        clock.advance(last_wait)

        assert (await send_task).state_name == "COMPLETED"


async def test_reconnecting_has_a_timeout() -> None:
    async with plain("JSONRPC", reconnect_timeout=0.1) as server:
        session = server.agent.session()
        server.line.cut()
        with pytest.raises(NotConnected):
            await session.send("go")
        server.line.restore()
        send_task = asyncio.create_task(session.send("go"))
        await server.say("one ")
        await until(lambda: bool(session.task_id))
        server.line.cut()
        with pytest.raises(AgentUnreachable):
            await send_task


async def test_a_missing_task_is_an_error() -> None:
    async with plain("JSONRPC") as server:
        with pytest.raises(TaskNotFoundError):
            async for _ in server.agent.follow("nothing"):
                pass


class HangingServicer(a2a_pb2_grpc.A2AServiceServicer, a2a_v0_3_pb2_grpc.A2AServiceServicer):
    """Service whose calls hang, except for streams. A stream ends when the test sets `completes`.

    Attributes:
        limits: Remaining seconds of each call that hangs, or None for a call without a limit.
        completes: Event after which streams complete their task.
    """

    def __init__(self) -> None:
        self.limits: list[float | None] = []
        self.completes = asyncio.Event()

    async def hang(self, request: object, context: Any) -> None:
        """Record the time limit of the call, and never return."""
        self.limits.append(context.time_remaining())
        await asyncio.Event().wait()

    GetTask = CancelTask = SendMessage = ListTasks = hang

    async def SendStreamingMessage(self, request: object, context: Any) -> AsyncIterator[StreamResponse]:
        task = Task(id="t", context_id="c", status=TaskStatus(state=TaskState.TASK_STATE_WORKING))
        yield StreamResponse(task=task)
        await self.completes.wait()
        task.status.state = TaskState.TASK_STATE_COMPLETED
        yield StreamResponse(task=task)


@pytest.mark.parametrize("version", ["1.0", "0.3"])
async def test_a_grpc_call_that_hangs_times_out(version: str) -> None:
    async with grpc_agent(HangingServicer(), version=version, timeout=0.05) as agent:
        for call in (agent.get("t"), agent.cancel("t"), agent.submit("hello")):
            with pytest.raises(AgentUnreachable):
                await asyncio.wait_for(call, 30)


@pytest.mark.parametrize("version", ["1.0", "0.3"])
async def test_a_grpc_call_that_waits_for_the_end_of_a_task_has_no_timeout(version: str) -> None:
    servicer = HangingServicer()
    async with grpc_agent(servicer, version=version, streaming=False, timeout=30) as agent:
        session = agent.session(Session("c", "t", TaskState.TASK_STATE_INPUT_REQUIRED))
        send_task = asyncio.create_task(session.send("the answer"))
        await until(lambda: bool(servicer.limits))
        send_task.cancel()
        await asyncio.wait({send_task})

    assert servicer.limits == [None]


async def test_events_arrive_while_a_poll_of_their_task_hangs() -> None:
    clock, servicer = ManualClock(), HangingServicer()
    async with grpc_agent(servicer, clock=clock) as agent:
        session = agent.session()
        send_task = asyncio.create_task(session.send("hello"))
        await until(lambda: bool(session.task_id))
        clock.advance(await clock.next_wait(SILENCE_TIMEOUT))
        await until(lambda: bool(servicer.limits))

        servicer.completes.set()

        assert (await asyncio.wait_for(send_task, 30)).state_name == "COMPLETED"


async def test_a_grpc_stream_notices_a_dead_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"grpc.keepalive_time_ms": 500, "grpc.http2.ping_timeout_ms": 3000, "grpc.http2.bdp_probe": 0}
    monkeypatch.setattr("a2a_celery.client.connection.transports.GRPC_KEEPALIVE", tuple(options.items()))
    events: list[StreamResponse] = []
    async with plain("GRPC") as server:
        session = server.agent.session()

        async def watch() -> None:
            async for event in session.stream("go", deadline=60):
                events.append(event)

        watch_task = asyncio.create_task(watch())
        await server.say("one ")
        await until(lambda: chunks(events) == "one ")
        server.line.silence()
        await server.say("two ")
        server.line.heal()
        await until(lambda: chunks(events) == "one two ")
        await server.steps.given.put(None)
        await watch_task

    assert session.result.text == "one two "
