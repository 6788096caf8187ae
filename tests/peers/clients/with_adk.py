"""Client with the RemoteA2aAgent of google-adk. Arguments: two gateway URLs, a webhook URL, and a binding
(JSON-RPC)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import steps
from google.adk.agents.remote_a2a_agent import AGENT_CARD_WELL_KNOWN_PATH, RemoteA2aAgent
from google.adk.agents.run_config import RunConfig, StreamingMode
from google.adk.events.event import Event
from google.adk.runners import Runner
from google.adk.sessions import InMemorySessionService
from google.genai import types
from steps import TaskView

SESSIONS = InMemorySessionService()
"""Session service of the clients of both gateways, so that a conversation can continue at the other gateway."""

session_of: dict[str, str] = {}
"""Id of the session in which each task began, by task id."""


class Adk:
    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    async def send(self, text: str, answers: TaskView | None = None) -> TaskView:
        session_id = None if answers is None else session_of[answers.task_id]
        view = TaskView("")
        async for event in self._events(text, session_id):
            view = TaskView(event.state, view.text + event.text, event.task_id, event.context_id)
        return view

    async def stream(self, text: str) -> AsyncIterator[TaskView]:
        async for view in self._events(text):
            yield view

    async def _events(self, text: str, session_id: str | None = None) -> AsyncIterator[TaskView]:
        if session_id is None:
            session_id = (await SESSIONS.create_session(app_name="peers", user_id="user")).id
        message = types.Content(role="user", parts=[types.Part(text=text)])
        config = RunConfig(streaming_mode=StreamingMode.SSE)
        async for event in self._runner.run_async(
            user_id="user", session_id=session_id, new_message=message, run_config=config
        ):
            view = of_event(event)
            session_of[view.task_id] = session_id
            yield view


def of_event(event: Event) -> TaskView:
    """Return the task's state and texts. The client shows earlier messages of the agent as thoughts."""
    metadata = event.custom_metadata
    texts = []
    for part in event.content.parts if event.content else ():
        if part.function_call:
            texts.append(part.function_call.args["input_required"])
        elif part.text and not part.thought:
            texts.append(part.text)
    state = metadata["a2a:response"]["status"]["state"].removeprefix("TASK_STATE_")
    return TaskView(state, "".join(texts), metadata["a2a:task_id"], metadata["a2a:context_id"])


@asynccontextmanager
async def client(address: str, *_: str) -> AsyncIterator[Adk]:
    remote = RemoteA2aAgent(name="sample", agent_card=f"{address}{AGENT_CARD_WELL_KNOWN_PATH}", use_legacy=False)
    yield Adk(Runner(app_name="peers", agent=remote, session_service=SESSIONS))


if __name__ == "__main__":
    steps.main(client)
