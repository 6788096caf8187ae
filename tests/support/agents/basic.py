"""Agents for the tests: a Celery app with an agent for each tested behaviour."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from a2a.helpers import new_text_part
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.tasks import TaskUpdater
from a2a.types import (
    AgentCapabilities,
    AgentCard,
    AgentExtension,
    AgentSkill,
    Artifact,
    Message,
    Part,
    Role,
    SendMessageRequest,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatus,
)
from celery import Celery

from a2a_celery import A2A, InputRequired, Rejected, Turn
from a2a_celery.caller import Caller

app = Celery("tests")
app.conf.task_default_queue = os.environ.get("TEST_QUEUE", "celery")
app.conf.task_queue_max_priority = int(os.environ.get("TEST_MAX_PRIORITY", "0")) or None
app.conf.broker_connection_retry_on_startup = True
app.conf.worker_enable_remote_control = "TEST_NO_REMOTE_CONTROL" not in os.environ
if "TEST_ALONE" in os.environ:  # exchange no control commands and events with other fleets on the RabbitMQ server
    app.conf.control_exchange = f"{app.conf.task_default_queue}-control"
    app.conf.event_exchange = f"{app.conf.task_default_queue}-events"
a2a = A2A(app)

REQUIRED_EXTENSION = "https://example.com/extensions/required/v1"


def card(name: str, **capabilities: object) -> AgentCard:
    """Return a minimal agent card."""
    return AgentCard(
        name=name,
        description=f"The test agent {name}.",
        version="1.0.0",
        capabilities=AgentCapabilities(**{"streaming": True, **capabilities}),  # type: ignore[arg-type]
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        skills=[AgentSkill(id=name, name=name, description=name, tags=["test"])],
    )


@a2a.agent("echo", description="Says it back.")
async def echo(turn: Turn) -> str:
    return turn.text


@a2a.agent("sync-echo")
def sync_echo(turn: Turn) -> str:
    """Return the text of the message from a plain function."""
    turn.blocking.say("on it", thread=threading.current_thread().name != "a2a-runs")
    return turn.text


@a2a.agent("count")
async def count(turn: Turn) -> AsyncIterator[str]:
    """Yield as many chunks as the message requests."""
    for number in range(int(turn.text)):
        yield f"{number} "


@a2a.agent("files")
async def files(turn: Turn) -> Artifact:
    """Return two files: one whose name attempts path traversal, and one without a name."""
    named_part = Part(raw=turn.text.encode(), filename="../../report.txt", media_type="text/plain")
    return Artifact(
        artifact_id="made", parts=[Part(text="two files"), named_part, Part(raw=b"\0", media_type="image/png")]
    )


@a2a.agent("sync-count")
def sync_count(turn: Turn) -> Iterator[str]:
    """Yield as many chunks as the message requests from a plain generator."""
    for number in range(int(turn.text)):
        yield f"{number} "


@a2a.agent("pace")
async def pace(turn: Turn) -> AsyncIterator[str]:
    """Yield chunks at an interval. The message has the form "<chunks> <seconds>"."""
    chunks, seconds = turn.text.split()
    for number in range(int(chunks)):
        yield f"{number} "
        await asyncio.sleep(float(seconds))


@a2a.agent("halves")
async def halves(turn: Turn) -> AsyncIterator[str]:
    """Stream numbers. The message has the form "<count> <file>". After half of the numbers, wait until the file
    exists."""
    to, file = turn.text.split()
    for number in range(int(to)):
        while number == int(to) // 2 and not Path(file).exists():  # noqa: ASYNC110, ASYNC240 - the test creates it
            await asyncio.sleep(0.05)
        yield f"{number} "
        await asyncio.sleep(0.05)


@a2a.agent("silent")
async def silent(turn: Turn) -> str:
    """Sleep for the number of seconds in the message, or for a minute if the message is empty."""
    await asyncio.sleep(float(turn.text or 60))
    return "done"


@a2a.agent("data")
async def data(turn: Turn) -> dict[str, object]:
    """Return the caller and other fields of the turn as a data part."""
    return {
        "user": turn.caller.user,
        "authenticated": turn.caller.authenticated,
        "tenant": turn.caller.tenant,
        "extensions": list(turn.caller.extensions),
        "headers": dict(turn.caller.headers),
        "metadata": dict(turn.metadata),
        "number": turn.number,
        "attempt": turn.attempt,
        "history": len(turn.task.history),
        "pid": os.getpid(),
        "loop": id(asyncio.get_running_loop()),
    }


@a2a.agent("suspended", description="Waits for two signals, the first of which times out.", signals=("late", "go"))
async def suspended(turn: Turn) -> str:
    """Wait briefly for the signal "late", and then without a timeout for the signal "go"."""
    try:
        late_text = (await turn.wait_for("late", timeout=0.2)).payload
    except TimeoutError:
        late_text = "without late"
    return f"go {(await turn.wait_for('go')).payload}, {late_text}"


@a2a.agent("ask")
async def ask(turn: Turn) -> str:
    """Request input until a follow-up message is a number."""
    if turn.number == 1 or not turn.text.isdigit():
        raise InputRequired("How many?")
    return f"{turn.text} it is"


@a2a.agent("slow-ask")
async def slow_ask(turn: Turn) -> str:
    """Request input 0.3 s after each message until the message is "stop"."""
    await asyncio.sleep(0.3)
    if turn.text == "stop":
        return "stopped"
    raise InputRequired(f"after {turn.text}?")


@a2a.agent("interview")
async def interview(turn: Turn) -> dict[str, object]:
    """Ask three questions. Return the answers and the id of the process that completes the task."""
    name = await turn.ask("Name?")
    town = await turn.ask(f"Where do you live, {name}?")
    colour = await turn.ask(parts=[Part(text="Colour?"), Part(text="red or blue")])
    return {"about": turn.text, "answers": [name, town, colour], "last": colour.message.message_id, "pid": os.getpid()}


@a2a.agent("sync-interview")
def sync_interview(turn: Turn) -> str:
    """Ask two questions from a plain function."""
    return f"{turn.blocking.ask('One?')} and {turn.blocking.ask('Two?')}"


@a2a.agent("moody")
async def moody(turn: Turn) -> str:
    """Request input with `Turn.ask`, then with `InputRequired`, and then with `Turn.ask` again."""
    if turn.text == "begin":
        await turn.ask("First?")
        raise InputRequired("Say continue.")
    return f"{turn.text}: {await turn.ask('Again?')}"


@a2a.agent("refuse")
async def refuse(turn: Turn) -> str:
    raise Rejected("Not today.")


@a2a.agent("fail")
async def fail(turn: Turn) -> str:
    raise RuntimeError("a secret")


@a2a.agent("block")
def block(turn: Turn) -> str:
    """Block the thread, so that the agent cannot be cancelled."""
    time.sleep(float(turn.text))
    return "done"


class Full(AgentExecutor):
    """Executor that sends Task, WORKING, two artifacts and COMPLETED, and reports the context of its request."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        assert context.message is not None
        assert context.task_id is not None
        assert context.context_id is not None
        updater = TaskUpdater(event_queue, context.task_id, context.context_id)
        await updater.submit()
        await updater.start_work(updater.new_agent_message([new_text_part("working")]))
        await updater.add_artifact([new_text_part(context.get_user_input())], artifact_id="a", name="one")
        await updater.add_artifact([new_text_part("!")], artifact_id="a", append=True, last_chunk=True)
        user = context.call_context.user
        words = [user.user_name, str(user.is_authenticated), context.tenant, *sorted(context.requested_extensions)]
        await updater.add_artifact(
            [new_text_part(" ".join(words))],
            artifact_id="b",
            metadata={"metadata": context.metadata, "new": context.current_task is None},
        )
        await updater.complete(updater.new_agent_message([new_text_part("bye")]))

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        raise NotImplementedError


class Direct(AgentExecutor):
    """Executor that responds with a message and no task, after the number of seconds in the request."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        await asyncio.sleep(float(context.get_user_input() or 0))
        await event_queue.enqueue_event(
            Message(message_id="direct", role=Role.ROLE_AGENT, parts=[new_text_part("directly")])
        )

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        return


class Patient(AgentExecutor):
    """Executor that works until it is cancelled. After "stubborn", it suppresses the cancellation and completes."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        assert context.task_id is not None
        assert context.context_id is not None
        updater = TaskUpdater(event_queue, context.task_id, context.context_id)
        await updater.start_work()
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            if context.get_user_input() != "stubborn":
                raise

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        assert context.task_id is not None
        assert context.context_id is not None
        await TaskUpdater(event_queue, context.task_id, context.context_id).cancel()


class Whole(AgentExecutor):
    """Executor that sends only Task objects, as some frameworks do."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        ids = {"id": context.task_id, "context_id": context.context_id}
        working_status = TaskStatus(state=TaskState.TASK_STATE_WORKING)
        await event_queue.enqueue_event(Task(**ids, status=working_status))  # type: ignore[arg-type]
        artifact = Artifact(artifact_id="a", parts=[new_text_part("whole")])
        await event_queue.enqueue_event(
            TaskArtifactUpdateEvent(task_id=context.task_id, context_id=context.context_id, artifact=artifact)
        )
        completed_status = TaskStatus(state=TaskState.TASK_STATE_COMPLETED)
        await event_queue.enqueue_event(Task(**ids, status=completed_status))  # type: ignore[arg-type]

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        return


a2a.add_agent(
    card("full", extended_agent_card=True), "tests.support.agents.basic:Full", extended_card=card("full-extended")
)
HOLD = 20
"""Seconds for which "direct" may answer with a message. A loaded machine needs more than the default."""

a2a.add_agent(card("direct"), Direct, first_event_hold=HOLD)
a2a.add_agent(card("late-direct"), Direct)
a2a.add_agent(card("patient"), Patient())
a2a.add_agent(
    card("whole"),
    lambda: Whole(),  # noqa: PLW0108 - a factory is one of the ways to say it
)
a2a.add_agent(card("quiet", streaming=False, push_notifications=False), Full)
a2a.add_agent(card("strict", extensions=[AgentExtension(uri=REQUIRED_EXTENSION, required=True)]), Full)
a2a.add_agent(card("promises-card", extended_agent_card=True), Full)
a2a.add_agent(card("heavy"), "tests.support.agents.slow_import:Heavy")
a2a.add_agent(card("unbuildable"), "tests.support.agents.slow_import:Unbuildable")


WINDOW = min(600, int(os.environ.get("A2A_RETENTION", "600")))


@a2a.agent("once", idempotency_window=WINDOW)
async def once(turn: Turn) -> str:
    """Sleep for the number of seconds in the last word of the message. If the message begins with "ask", request
    input."""
    word, _, seconds = turn.text.rpartition(" ")
    await asyncio.sleep(float(seconds))
    if word.startswith("ask"):
        raise InputRequired(f"more than {word}?")
    return f"{word}, run {turn.number} in {os.getpid()}"


a2a.add_agent(card("once-direct"), Direct, idempotency_window=WINDOW, first_event_hold=HOLD)


@a2a.agent("steady", max_attempts=3)
async def steady(turn: Turn) -> AsyncIterator[object]:
    """Stream an artifact with a pause. The message lists the length of the pause in seconds for each attempt. In the
    first attempt, send a complete artifact before the stream."""
    if turn.attempt == 1:
        await turn.artifact("finished", artifact_id="first")
    yield f"attempt {turn.attempt} "
    await asyncio.sleep(float(turn.text.split()[turn.attempt - 1]))
    yield "done"


@a2a.agent("poison", max_attempts=2)
async def poison(turn: Turn) -> str:
    """Kill the worker's process group."""
    os.killpg(os.getpgid(0), signal.SIGKILL)
    return "never"


@a2a.agent("related")
async def related(turn: Turn) -> list[str]:
    """Return the id and the number of artifacts of each task to which the message refers."""
    return [f"{task.id}: {len(task.artifacts)}" for task in turn.related_tasks]


@a2a.agent("second-time")
async def second_time(turn: Turn) -> str:
    """Complete if the message refers to a task. Otherwise sleep for an hour."""
    if not turn.related_tasks:
        await asyncio.sleep(3600)
    return f"after {turn.related_tasks[0].id}"


class Related(AgentExecutor):
    """Executor that returns the ids of the tasks to which the message refers."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        assert context.task_id is not None
        assert context.context_id is not None
        updater = TaskUpdater(event_queue, context.task_id, context.context_id)
        await updater.submit()
        await updater.add_artifact([new_text_part(" ".join(task.id for task in context.related_tasks))])
        await updater.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        return


OPTIONAL_EXTENSIONS = ("https://example.com/extensions/one/v1", "https://example.com/extensions/two/v1")
a2a.add_agent(card("related-executor", extensions=[AgentExtension(uri=uri) for uri in OPTIONAL_EXTENSIONS]), Related)


def by_word(request: SendMessageRequest, caller: Caller) -> dict[str, object]:
    """Return the route that the message requests, or the queue of the tenant "acme". Some messages request an exception
    or an invalid route."""
    match request.message.parts[0].text.split():
        case ["to", queue, *_]:
            return {"queue": f"{app.conf.task_default_queue}-{queue}", "priority": 3}
        case ["rank", priority]:
            return {"queue": f"{app.conf.task_default_queue}-ranked", "priority": int(priority)}
        case ["raise"]:
            raise RuntimeError("a secret")
        case ["wrong", *words]:
            return {"queue": 5} if "value" in words else {"countdown": 5}
        case ["nothing"]:
            return None  # type: ignore[return-value]
        case ["within", seconds]:
            return {"expires": float(seconds)}
    return {"queue": f"{app.conf.task_default_queue}-acme"} if caller.tenant == "acme" else {}


@a2a.agent("routed", route=by_word, scheduling=True)
async def routed(turn: Turn) -> str:
    """Return the text of the message, or request input if the text contains "ask"."""
    if "ask" in turn.text:
        await asyncio.sleep(0.5)
        raise InputRequired("Where to?")
    return turn.text


@a2a.agent("nonsense")
async def nonsense(turn: Turn) -> object:
    """Return an object that cannot be serialized."""
    return object()
