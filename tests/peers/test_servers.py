"""Clients of a2a_celery (RemoteAgent, ``a2a-celery call``, `a2a.call`) with servers of other libraries and versions.

Every server runs an agent that behaves like `sample`. The client receives the same results from each server, except for
the features that a server lacks.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
from a2a.helpers import new_text_message
from a2a.types import Role, StreamResponse, TaskPushNotificationConfig
from a2a.utils.errors import TaskNotFoundError
from celery import Celery
from click.testing import CliRunner

from a2a_celery.cli.main import main
from a2a_celery.client import DeadlineExceeded, RemoteAgent, Result
from a2a_celery.client.calling import CallTask, call_task
from a2a_celery.client.connection.turn_stream import SILENCE_TIMEOUT
from a2a_celery.client.receiver import Notification, receiver_app
from a2a_celery.client.result import ResultBuilder
from a2a_celery.client.session import DEADLINE, AgentSession
from a2a_celery.lifecycle.states import SUBMITTED, WORKING
from tests.conftest import require_peers
from tests.support.clocks import ManualClock
from tests.support.processes.fleet import free_port
from tests.support.processes.serving import serve_app
from tests.support.waiting import eventually, eventually_async

from .environments import program

HERE = Path(__file__).parent
TOKEN = "chosen-by-the-client"


@dataclass(frozen=True)
class Peer:
    """Server of another library.

    Attributes:
        fails: The client's result if the executor raises an exception.
        lacks: Missing features, each with the reason.
    """

    script: str
    environment: str
    binding: str = "JSONRPC"
    fails: str = "FAILED"
    lacks: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.script}-{self.binding}"


OPEN = {"end": "the stream of a cancelled task stays open"}
FASTA2A = {"answer": "fasta2a begins a task with each message", "webhook": "fasta2a posts none"}
PEERS = [
    Peer("sdk_0_3.py", "sdk-0.3", fails="DeadlineExceeded, SUBMITTED", lacks=OPEN),
    Peer("sdk_0_3.py", "sdk-0.3", "HTTP+JSON", fails="DeadlineExceeded, SUBMITTED", lacks=OPEN),
    Peer("sdk_1.py", "sdk-1"),
    Peer("sdk_1.py", "sdk-1", "HTTP+JSON"),
    Peer("a2a_js_0_3.mjs", "node"),
    Peer("a2a_js_0_3.mjs", "node", "HTTP+JSON"),
    Peer("a2a_js_1.mjs", "node"),
    Peer("a2a_js_1.mjs", "node", "HTTP+JSON"),
    Peer("fasta2a_2.py", "sdk-1", lacks=FASTA2A),
]


def parametrize_without(lack: str) -> pytest.MarkDecorator:
    """Parametrize a test with the servers that have the feature `lack`."""
    able = [peer for peer in PEERS if lack not in peer.lacks]
    return pytest.mark.parametrize("peer", able, ids=str, indirect=True, scope="module")


@contextmanager
def serving(peer: Peer, log: Path) -> Iterator[str]:
    """Run a peer's server and yield its address."""
    port = free_port()
    command = [program(peer.environment), str(HERE / "servers" / peer.script), str(port), peer.binding]
    with log.open("wb") as output:
        env = {**os.environ, "PYTHONPATH": str(HERE)}
        server = subprocess.Popen(command, stdout=output, stderr=output, env=env, start_new_session=True)
    url = f"http://127.0.0.1:{port}"

    def answers() -> bool:
        assert server.poll() is None, log.read_text()
        try:
            return httpx.get(f"{url}/.well-known/agent-card.json").status_code == 200
        except httpx.HTTPError:
            return False

    try:
        eventually(answers, what=f"{peer} serves")
        yield url
    finally:
        os.killpg(server.pid, signal.SIGKILL)  # Node.js is a child of its package's wrapper
        server.wait()


@pytest.fixture(scope="module", params=PEERS, ids=str)
def peer(request: pytest.FixtureRequest) -> Peer:
    peer: Peer = request.param
    require_peers(peer.environment)
    return peer


@pytest.fixture(scope="module")
def url(peer: Peer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(peer, tmp_path_factory.mktemp("server") / "log") as url:
        yield url


@pytest.fixture
async def agent(url: str) -> AsyncIterator[RemoteAgent]:
    async with RemoteAgent(url) as agent:
        yield agent


async def test_a_turn_is_sent_streamed_and_read_again(agent: RemoteAgent) -> None:
    session = agent.session()
    result = await session.send("hello", deadline=60)
    assert (result.state_name, result.text) == ("COMPLETED", "hello")
    assert (await agent.get(result.task_id)).text == "hello"

    count_result = Result.of(*[event async for event in session.stream("count 3", deadline=60)])
    assert (count_result.state_name, count_result.text) == ("COMPLETED", "0 1 2 ")
    assert count_result.task_id != result.task_id
    assert session.context_id == result.context_id == count_result.context_id


@parametrize_without("answer")
async def test_a_question_is_answered(agent: RemoteAgent) -> None:
    session = agent.session()
    question = await session.send("ask", deadline=60)
    assert (question.state_name, question.text) == ("INPUT_REQUIRED", "Which colour?")

    answer = await session.send("blue", deadline=60)

    assert (answer.state_name, answer.text) == ("COMPLETED", "blue it is")
    assert answer.task_id == question.task_id


@pytest.mark.parametrize("is_subscribed", [False, True], ids=["by the message's stream", "by a subscription"])
async def test_a_cancel_ends_the_stream(url: str, peer: Peer, is_subscribed: bool) -> None:
    clock, builder = ManualClock(), ResultBuilder()
    async with RemoteAgent(url, clock=clock) as agent, asyncio.TaskGroup() as listening:
        message = new_text_message("wait", role=Role.ROLE_USER)
        events = agent.follow((await agent.submit(message)).task_id) if is_subscribed else agent.stream(message)
        listener = listening.create_task(gather(events, builder))
        await eventually_async(lambda: is_working(agent, builder.task_id), what="the task works")

        await agent.cancel(builder.task_id)

        if "end" in peer.lacks:
            await eventually_async(lambda: is_done_in_time(listener, clock), what="the client polls the task")
        await listener

    assert builder.result().state_name == "CANCELED"


async def gather(events: AsyncIterator[StreamResponse], builder: ResultBuilder) -> None:
    async for event in events:
        builder.add(event)


async def is_working(agent: RemoteAgent, task_id: str) -> bool:
    """Return True if the task is WORKING. The server is polled, because a server of 0.3 sends no earlier state to a
    subscriber."""
    return task_id != "" and (await agent.get(task_id)).state == WORKING


async def is_done_in_time(listener: asyncio.Task[None], clock: ManualClock) -> bool:
    clock.advance(SILENCE_TIMEOUT)
    return listener.done()


async def has_state(builder: ResultBuilder | AgentSession, state: int) -> bool:
    return builder.state == state


async def test_an_executor_that_raises_ends_the_call(url: str, peer: Peer) -> None:
    clock = ManualClock()
    async with RemoteAgent(url, clock=clock) as agent:
        session = agent.session()
        sending = asyncio.create_task(session.send("fail"))
        if peer.fails.startswith("DeadlineExceeded"):
            await eventually_async(lambda: has_state(session, SUBMITTED), what="the task is there")
            await clock.until_waiting(SILENCE_TIMEOUT, DEADLINE)
            clock.advance(DEADLINE)
        try:
            outcome = (await sending).state_name
        except DeadlineExceeded as error:
            outcome = f"DeadlineExceeded, {error.result.state_name}"
        except Exception as error:
            outcome = type(error).__name__

    assert outcome == peer.fails


async def test_errors_are_those_of_the_protocol(agent: RemoteAgent) -> None:
    with pytest.raises(TaskNotFoundError):
        await agent.get("no-such-task")

    result = await agent.session().send("hello", deadline=60)
    assert (await agent.cancel(result.task_id)).state_name == "COMPLETED", "it had ended before"


@parametrize_without("webhook")
async def test_the_receiver_accepts_webhooks(agent: RemoteAgent) -> None:
    notifications: list[Notification] = []

    async def note(notification: Notification) -> None:
        notifications.append(notification)

    async with serve_app(receiver_app(note, token=TOKEN)) as hook:
        push = TaskPushNotificationConfig(url=hook, token=TOKEN)
        task = await agent.submit(new_text_message("hello", role=Role.ROLE_USER), push=push)

        async def is_completed() -> bool:
            return any(Result.of(notification.event).state_name == "COMPLETED" for notification in notifications)

        await eventually_async(is_completed, what="the end is posted")

    assert {notification.task_id for notification in notifications} == {task.task_id}


def test_the_command_answers_a_question(url: str, peer: Peer) -> None:
    output = CliRunner().invoke(main, ["call", url, "hello" if "answer" in peer.lacks else "ask"], input="blue\n")

    assert output.exit_code == 0, output.output
    assert output.stdout.splitlines()[-1] == "COMPLETED"
    assert ("hello" if "answer" in peer.lacks else "blue it is") in output.stdout


@parametrize_without("answer")
def test_a_step_answers_a_question(url: str, call: CallTask) -> None:
    question = call.s(url, "ask", on_interrupt="return").apply().get()
    assert (question["state_name"], question["text"]) == ("INPUT_REQUIRED", "Which colour?")

    answer = call.s(url, "blue", task_id=question["task_id"], on_interrupt="return").apply().get()

    assert (answer["state_name"], answer["text"]) == ("COMPLETED", "blue it is")


@pytest.fixture
def call() -> Iterator[CallTask]:
    app = Celery("callers", broker="memory://", backend="cache+memory://", set_as_current=False)
    yield call_task(app)
    app.close()
