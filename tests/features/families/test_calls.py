"""`Turn.call` after errors: a remote task is started once, and each run receives the same error."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest
from a2a.types import AgentInterface, TaskState, TaskStatus
from a2a.types import Task as A2ATask
from celery import Celery
from google.protobuf.json_format import MessageToDict
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from a2a_celery import A2A, Turn
from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.client import RemoteAgent
from a2a_celery.client.errors import AgentUnreachable
from a2a_celery.client.result import Result
from a2a_celery.errors import ConfigError
from a2a_celery.features.families.agent_calls import AgentCalls, ChildCall
from a2a_celery.features.families.calls import STARTED
from a2a_celery.features.steps.journal import JournalCall, RunJournal
from a2a_celery.lifecycle.states import FAILED, WORKING
from a2a_celery.store import AsyncStore, Keys
from tests.execution.attempts import Calls, Task
from tests.execution.scene import TurnByTurn
from tests.support.agents.basic import card
from tests.support.processes.serving import serve_app
from tests.support.store.seeds import ANN

URL = "https://agents.example.com/checker"


class RemoteServer(AgentCalls):
    """Remote agent that starts a task for each message that it receives.

    Attributes:
        errors: Errors of the next requests.
        is_done: Event that is set when the tasks are completed.
    """

    def __init__(self) -> None:
        self.started: list[str] = []
        self.errors: list[Exception | None] = []
        self.is_done = asyncio.Event()

    async def start(self, call: ChildCall) -> Result:
        self._raise_error()
        self.started.append(f"task {len(self.started) + 1}")
        return Result(A2ATask(id=self.started[-1]))

    async def result(self, call: ChildCall, task_id: str) -> Result:
        self._raise_error()
        await self.is_done.wait()
        return Result(A2ATask(id=task_id, status=TaskStatus(state=TaskState.TASK_STATE_COMPLETED)))

    def _raise_error(self) -> None:
        error = self.errors.pop(0) if self.errors else None
        if error is not None:
            raise error


class RemoteOnly(AgentCalls):
    """Caller of remote agents, for an app without a store."""

    def __init__(self) -> None:
        pass


@pytest.fixture
def server(task: Task) -> RemoteServer:
    """Remote agent that is called by the agents of a test."""
    task.calls = RemoteServer()
    return task.calls


def caller(calls: Calls, timeout: float | None = None) -> Callable[[Turn], Any]:
    """Return an agent that calls a remote agent, handles the error of the call, and performs a step."""

    async def agent(turn: Turn) -> str:
        try:
            async with asyncio.timeout(timeout):
                text = (await turn.call(URL, "check", context_id=None, tenant=None)).task_id
        except (TimeoutError, AgentUnreachable) as error:
            text = f"{type(error).__name__}: {error}"
        await turn.step("after", calls.work, "after")
        return cast(str, text)

    return agent


async def test_a_call_that_timed_out_waits_for_the_same_task(task: Task, calls: Calls, server: RemoteServer) -> None:
    assert await task.attempt(caller(calls, timeout=0.05)) == "TimeoutError: "
    assert await task.attempt(caller(calls, timeout=0.05)) == "TimeoutError: "
    server.is_done.set()

    assert await task.attempt(caller(calls)) == "task 1"
    assert (server.started, calls.made) == (["task 1"], ["after"])


@pytest.mark.parametrize("errors", [[AgentUnreachable("away")], [None, AgentUnreachable("away")]])
async def test_an_error_of_a_remote_agent_is_recorded(
    task: Task, calls: Calls, server: RemoteServer, errors: list[Exception | None]
) -> None:
    server.errors = errors
    task_count = len(errors) - 1
    server.is_done.set()

    assert await task.attempt(caller(calls)) == "AgentUnreachable: away"
    assert await task.attempt(caller(calls)) == "AgentUnreachable: away"
    assert (len(server.started), calls.made) == (task_count, ["after"])


async def test_an_error_that_ends_the_run_is_not_recorded(task: Task, server: RemoteServer) -> None:
    server.errors = [None, AgentUnreachable("away")]
    server.is_done.set()

    async def agent(turn: Turn) -> str:
        return cast(str, (await turn.call(URL, "check")).task_id)

    with pytest.raises(AgentUnreachable):
        await task.attempt(agent)

    assert await task.attempt(agent) == "task 1"
    assert server.started == ["task 1"]


async def test_a_tenant_is_sent_to_a_url(task: Task) -> None:
    task.calls = RemoteOnly()
    tenants: list[str] = []

    async def record(request: Request) -> Response:
        params = (await request.json())["params"]
        tenants.append(params["tenant"])
        answer = {"task": {"id": "t", "contextId": "c", "status": {"state": "TASK_STATE_COMPLETED"}}}
        return JSONResponse({"jsonrpc": "2.0", "id": 1, "result": answer})

    async def agent(turn: Turn) -> str:
        return cast(str, (await turn.call(url, "check", tenant="acme")).task_id)

    interface = AgentInterface(protocol_binding="JSONRPC", protocol_version="1.0")
    agent_card = card("checker")
    routes = [
        Route("/rpc", record, methods=["POST"]),
        Route("/.well-known/agent-card.json", lambda _: JSONResponse(MessageToDict(agent_card))),
    ]
    async with serve_app(Starlette(routes=routes)) as url:
        interface.url = f"{url}/rpc"
        del agent_card.supported_interfaces[:]
        agent_card.supported_interfaces.append(interface)
        assert await task.attempt(agent) == "t"

    assert tenants == ["acme"]


@pytest.mark.parametrize("get_target", [lambda: "checker", lambda: RemoteAgent(URL)])
async def test_a_tenant_without_a_url_is_refused(
    task: Task, server: RemoteServer, get_target: Callable[[], Any]
) -> None:
    async def agent(turn: Turn) -> None:
        await turn.call(get_target(), "check", tenant="acme")

    with pytest.raises(ConfigError, match=r"tenant='acme'\): only for the URL of an agent"):
        await task.attempt(agent)
    assert server.started == []


async def test_a_call_that_is_cancelled_while_its_task_is_recorded_finds_the_task(
    task: Task, calls: Calls, server: RemoteServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = RunJournal.record

    async def record_slowly(journal: RunJournal, call: JournalCall, form: str, content: bytes) -> Any:
        entry = await record(journal, call, form, content)
        if form == STARTED:
            await asyncio.Event().wait()
        return entry

    monkeypatch.setattr(RunJournal, "record", record_slowly)
    assert await task.attempt(caller(calls, timeout=0.05)) == "TimeoutError: "
    monkeypatch.undo()
    server.is_done.set()

    assert await task.attempt(caller(calls)) == "task 1"
    assert server.started == ["task 1"]


app = Celery("test", broker="memory://", set_as_current=False)
a2a = A2A(app)


@a2a.agent(ANN.agent, description="Calls itself.", session=True)
async def calls_itself(turn: Turn) -> None:
    context_id = turn.context_id if turn.text == "own context" else "another-context"
    await turn.call(ANN.agent, "hello", context_id=context_id)


@pytest.mark.parametrize(("text", "state"), [("own context", FAILED), ("another context", WORKING)])
async def test_a_call_whose_child_would_wait_for_its_parent_fails(
    store: AsyncStore, keys: Keys, redis_server: EmbeddedRedis, text: str, state: int
) -> None:
    """The runs of a context are executed one after the other, and the parent keeps its place while it waits."""
    async with TurnByTurn(a2a, store, keys, redis_server.store_url) as turns:
        assert (await turns.begin(ANN.agent, text))[0] == state
