"""Agents with sessions, some of which append lines to a file of their context."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.tasks import TaskUpdater
from a2a.types import Part

from a2a_celery import SessionConflict, Turn, current_session, current_turn
from tests.support.agents.basic import a2a, app, card

GATE_FILE = "hold"
"""Name of a file. Some agents wait while the file exists."""


def note(context_id: str, line: str) -> None:
    """Append a line to the file of a context in one write."""
    file = os.open(Path(os.environ["TEST_NOTES"]) / context_id, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(file, f"{line}\n".encode())
    os.close(file)


async def wait_for_gate() -> None:
    """Wait while `GATE_FILE` exists."""
    while (Path(os.environ["TEST_NOTES"]) / GATE_FILE).exists():  # noqa: ASYNC110 - another process removes it
        await asyncio.sleep(0.02)


@a2a.agent("remember", session=True)
async def remember(turn: Turn) -> dict[str, object]:
    """Add the message to the session, and return all messages. Some messages are commands."""
    state = turn.session.state
    state.setdefault("heard", []).append(turn.text)
    match turn.text.split():
        case ["ask"]:
            state["heard"].append(await turn.ask("What else?"))
        case ["fail"]:
            await turn.checkpoint()
            state["heard"].append("never")
            raise RuntimeError("a secret")
        case ["large", size]:
            state["large"] = "x" * int(size)
        case ["odd"]:
            state["odd"] = {1, 2}
        case ["nonsense"]:
            turn.session.state = ["no", "object"]  # type: ignore[assignment]
    history = [message.parts[0].text for message in await turn.session.history() if message.parts[0].text]
    return {
        "heard": list(state.get("heard", [])),
        "version": turn.session.version,
        "history": history,
        "pid": os.getpid(),
    }


@a2a.agent("sync-remember", session=True)
def sync_remember(turn: Turn) -> str:
    """Count the messages in the session from a plain function, with a checkpoint."""
    turn.session.state["count"] = turn.session.state.get("count", 0) + 1
    turn.blocking.checkpoint()
    return f"{turn.session.state['count']} of {len(turn.blocking.history())}"


@a2a.agent("no-session")
async def no_session(turn: Turn) -> str:
    return str(turn.session.state)


@a2a.agent("at-once", session=True, one_run_per_context=False)
async def at_once(turn: Turn) -> str:
    """Change the session, wait while the gate file exists, and save the session."""
    turn.session.state["by"] = turn.text
    await wait_for_gate()
    try:
        await turn.checkpoint()
    except SessionConflict:
        return "conflict"
    return "saved"


class Counting(AgentExecutor):
    """Executor that increments a counter in the session, sends the final status and works for a further 0.1 s."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        assert context.task_id is not None
        assert context.context_id is not None
        session = current_session()
        assert session is not None
        session.state["count"] = session.state.get("count", 0) + 1
        updater = TaskUpdater(event_queue, context.task_id, context.context_id)
        await updater.add_artifact([Part(text=str(session.state["count"]))])
        await updater.complete()
        note(context.context_id, f"said {context.task_id}")
        await asyncio.sleep(0.1)
        note(context.context_id, f"over {context.task_id}")

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        return


a2a.add_agent(card("counting"), Counting, session=True, one_run_per_context=True)


@app.task(name="count-in-session", shared=False)
def count_in_session(text: str) -> int:
    """Count the calls in the session, as a plain Celery task."""
    turn, session = current_turn(), current_session()
    assert turn is not None
    assert session is turn.session
    session.state["count"] = session.state.get("count", 0) + 1
    turn.blocking.checkpoint()
    return int(session.state["count"])


a2a.expose(count_in_session, session=True)


@a2a.agent("in-turn", one_run_per_context=True, max_attempts=3)
async def in_turn(turn: Turn) -> str:
    """Record the start and the end of the run. Between these, work for some milliseconds and wait while the gate file
    exists."""
    note(turn.context_id, f"begin {turn.task_id} {turn.attempt} {turn.text}")
    await asyncio.sleep(0.02)
    await wait_for_gate()
    note(turn.context_id, f"end {turn.task_id} {turn.attempt} {turn.text}")
    return turn.text


@a2a.agent("five-steps", session=True, max_attempts=3)
async def five_steps(turn: Turn) -> str:
    """Execute five tool calls and record each. In the first attempt, the third tool call hangs."""
    state = turn.session.state
    if not turn.session.resumed:
        state["done"] = []
    for step in range(len(state["done"]) + 1, 6):
        async with turn.tool_call(f"step-{step}"):
            note(turn.context_id, f"{turn.execution.state.name} {step} in attempt {turn.attempt}")
            if step == 3 and turn.attempt == 1:
                await asyncio.sleep(3600)
            await turn.artifact(f"step {step}", artifact_id=f"step-{step}")
        state["done"].append(step)
        await turn.checkpoint()
    return f"{state['done']} in attempt {turn.attempt}"
