"""Claimed runs with their event queues, on a store that can be blocked and that can fail."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, Self, TypeVar

from a2a.types import AgentCard, Part, TaskArtifactUpdateEvent, TaskState
from celery import Task
from celery.app.trace import build_tracer

from a2a_celery import A2A
from a2a_celery.agents import Agent, OnMessage
from a2a_celery.caller import Caller
from a2a_celery.clock import Clock
from a2a_celery.dispatch import RUN_HEADER
from a2a_celery.errors import StoreUnavailable
from a2a_celery.execution.events.queue import RunEventQueue
from a2a_celery.execution.events.settlement import Settlement
from a2a_celery.execution.open_run import OpenRun
from a2a_celery.execution.run import open_features
from a2a_celery.features.questions.answer_section import AnswerSection
from a2a_celery.lifecycle import Completed, Failure, final_event
from a2a_celery.lifecycle.references import RunRef
from a2a_celery.lifecycle.states import COMPLETED
from a2a_celery.settings import Settings
from a2a_celery.store import AsyncStore, Keys, Operation
from a2a_celery.store.runs.commands import Claim
from a2a_celery.store.tasks.commands import continue_task, create_task
from tests.support.clocks import ShortSleepClock
from tests.support.store.replies import begins
from tests.support.store.seeds import ANN, CONTEXT, RETENTION, Seeds, request
from tests.support.waiting import eventually_async

T = TypeVar("T")


def perform_run(task: Task, celery_id: str, *args: Any, retries: int = 0, **kwargs: Any) -> Any:
    """Call a run's Celery task as a pool's thread or child does. Return Celery's result with its state."""
    message = {
        "id": celery_id,
        "delivery_info": {},
        "headers": {RUN_HEADER: True},
        RUN_HEADER: True,
        "retries": retries,
    }
    return build_tracer(task.name, task, app=task.app)(celery_id, args, kwargs, message)


SETTINGS = Settings(store_url="redis://127.0.0.1/0")
AGENT = Agent("agent", AgentCard(name="agent"), "function", None)

LONG = 60.0
"""Hold in seconds that is longer than any test."""


class Gate(AsyncStore):
    """Store that can be blocked, and that can fail before or after an operation."""

    def __init__(self, store: AsyncStore) -> None:
        self.store = store
        self.calls: list[str] = []
        self.open = asyncio.Event()
        self.open.set()
        self.lose_answers = 0
        self.refuse = 0

    async def run(self, operation: Operation[T]) -> T:
        await self.open.wait()
        self.calls.append(operation.script.name)
        if self.refuse:
            self.refuse -= 1
            raise StoreUnavailable("down")
        answer = await self.store.run(operation)
        if self.lose_answers:
            self.lose_answers -= 1
            raise StoreUnavailable("the reply was lost")
        return answer


class Scene:
    """Claimed runs with their event queues on a `Gate`."""

    def __init__(self, gate: Gate, keys: Keys, seeds: Seeds) -> None:
        self.gate, self.keys, self.seeds = gate, keys, seeds
        self.published: list[tuple[str, int]] = []
        """Agent and number of each published run, in order."""
        self.opened: list[RunEventQueue] = []
        self._runs: dict[RunEventQueue, OpenRun] = {}

    async def begin(
        self,
        *,
        hold: float = LONG,
        claim: Claim | None = None,
        working: bool = True,
        on_message: OnMessage = "queue",
        clock: Clock | None = None,
    ) -> tuple[Claim, RunEventQueue]:
        """Claim a run and open its event queue. Without a `clock`, the queue waits at most 10 ms for the store."""
        claim = claim or await self.seeds.claim_run(working=working, steering=on_message == "steer")
        delivers_messages = on_message in ("steer", "interrupt")
        events = self.open(
            claim,
            clock=clock,
            hold=hold,
            message_allowed=not delivers_messages,
            ends_on_return=delivers_messages,
        )
        return claim, events

    def open(
        self,
        claim: Claim,
        *,
        settings: Settings = SETTINGS,
        clock: Clock | None = None,
        hold: float = LONG,
        **options: Any,
    ) -> RunEventQueue:
        """Return the event queue of a claimed run, with `options` for the queue."""
        run = OpenRun(self.gate, self.keys, claim, settings, AGENT, clock=clock or ShortSleepClock())
        events = RunEventQueue(run, hold=hold, **options)
        self.opened.append(events)
        self._runs[events] = run
        return events

    def run_of(self, events: RunEventQueue) -> OpenRun:
        """Return the run of an event queue."""
        return self._runs[events]

    async def open_features(self, events: RunEventQueue, **options: Any) -> OpenRun:
        """Open the features of a run that the options of its agent turn on, and return the run."""
        agent: Any = SimpleNamespace(option=options.get)
        agent.selected = partial(Agent.selected, agent)
        await open_features(agent, self.run_of(events), events)
        return self.run_of(events)

    def settlement(self, events: RunEventQueue) -> Settlement:
        """Return the settlement of a run."""

        async def publish_next(agent: str, run: RunRef, options: object) -> None:
            self.published.append((agent, run.run))

        return Settlement(self.run_of(events), events.translator, publish_next)

    async def settle(self, claim: Claim, events: RunEventQueue, outcome: Any = None) -> Failure | None:
        """Settle the run as `Run` does."""
        final = final_event(outcome or Completed(), claim.task.id, claim.task.context_id)
        async with asyncio.timeout(20):
            return await events.settle(final, self.settlement(events).write)

    async def texts(self, task_id: str) -> list[str]:
        """Return the texts of the chunks in the task's log."""
        events = [entry.event for entry in await self.seeds.log(task_id)]
        return [part.text for e in events if isinstance(e, TaskArtifactUpdateEvent) for part in e.artifact.parts]


def until(condition: Callable[[], Awaitable[bool]]) -> Awaitable[bool]:
    return eventually_async(condition)


class TurnByTurn:
    """Task of an agent of `a2a`. Each message to the task is followed by a run in the test process."""

    def __init__(self, a2a: A2A, store: AsyncStore, keys: Keys, store_url: str) -> None:
        a2a.celery.conf.update(a2a_store_url=store_url, a2a_key_prefix=keys.prefix)
        self._a2a, self._store, self._keys = a2a, store, keys
        self._seeds = Seeds(store, keys)

    async def __aenter__(self) -> Self:
        self._worker = self._a2a.worker()
        return self

    async def __aexit__(self, *error: object) -> None:
        await asyncio.to_thread(self._worker.close)

    async def begin(self, agent: str, text: str = "hello") -> tuple[TaskState, str]:
        """Create the task with the message `text`, and perform its first run. Return the task's state and the text of
        its status."""
        caller = Caller(user="ann").to_json()
        create = create_task(
            self._keys,
            ANN,
            "t",
            CONTEXT,
            request(text),
            caller=caller,
            retention=RETENTION,
            serialize_context=self._a2a.agents[agent].serialize_context,
        )
        await self._store.run(create)
        return await self.perform(agent, 1)

    async def answer(self, agent: str, text: str, run: int = 2) -> list[str]:
        """Send the answer `text`, and perform run `run`, which completes the task. Return the texts of the task's
        artifacts."""
        caller = Caller(user="ann").to_json()
        message = request(text, "t", CONTEXT)
        result = await self._store.run(
            continue_task(self._keys, ANN, "t", message, CONTEXT, caller=caller, nonce="answer")
        )
        assert begins(result), result
        assert (await self.perform(agent, run))[0] == COMPLETED
        task = await self._seeds.task("t")
        return ["".join(part.text for part in artifact.parts) for artifact in task.artifacts]

    async def say(self, agent: str, run: int, *parts: Part) -> tuple[TaskState, str]:
        """Send another message without the gateway's validation of an answer, and execute run `run`.

        Return the task's state and the text of its status.
        """
        message = request("", "t", CONTEXT)
        del message.message.parts[:]
        message.message.parts.extend(parts)
        caller, nonce = Caller(user="ann").to_json(), f"run {run}"
        sections = [AnswerSection(validated_run=run - 1)]
        add = continue_task(self._keys, ANN, "t", message, CONTEXT, caller=caller, nonce=nonce, sections=sections)
        result = await self._store.run(add)
        assert begins(result), result
        return await self.perform(agent, run)

    async def perform(self, agent: str, run: int, *, retries: int = 0) -> tuple[TaskState, str]:
        """Execute a run, or the retry of a run. Return the task's state and the text of its status."""
        code = self._a2a.agents[agent].code
        if isinstance(code, Task):
            await asyncio.to_thread(perform_run, code, f"t.{run}", text="x")
        else:
            task = self._a2a.celery.tasks[f"a2a.{agent}"]
            await asyncio.to_thread(perform_run, task, f"t.{run}", "t", run, retries=retries)
        status = (await self._seeds.task("t")).status
        return status.state, "".join(part.text for part in status.message.parts)
