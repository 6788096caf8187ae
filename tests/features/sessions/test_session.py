"""Sessions in a run: their permitted contents, their encryption, and their state at the end of the run."""

from __future__ import annotations

import asyncio
import math
from types import SimpleNamespace
from typing import Any

import pytest
from a2a.types import Message, Part, Role

from a2a_celery.clock import SYSTEM_CLOCK
from a2a_celery.errors import ConfigError, SessionConflict, SessionError
from a2a_celery.execution.agents.running_agent import RunningAgent
from a2a_celery.execution.agents.turn import Turn
from a2a_celery.execution.events.queue import RunEventQueue
from a2a_celery.execution.limits import Limits
from a2a_celery.execution.run import Run, begin_agent
from a2a_celery.features.sessions.section import session_key
from a2a_celery.features.sessions.session import (
    HISTORY_TASKS,
    MAX_STATE_BYTES,
    ContextSession,
    current_session,
)
from a2a_celery.lifecycle import Completed, Failure, Paused
from a2a_celery.lifecycle.outcomes import AGENT_FAILED
from a2a_celery.lifecycle.states import COMPLETED, FAILED, INPUT_REQUIRED
from a2a_celery.settings import Settings
from a2a_celery.store import AsyncStore, Keys
from a2a_celery.store.runs.commands import Claim
from a2a_celery.store.tasks.commands import continue_task
from tests.execution.scene import Scene, until
from tests.support.store.seeds import ANN, CONTEXT, Seeds, chunk, request, status
from tests.unit.test_agents import agent

OLD, NEW = "o" * 32, "n" * 32


class Runs:
    """Runs of one context, each with its session."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.settings = Settings(store_url="redis://127.0.0.1/0")

    async def begin(self, **settings: Any) -> tuple[Claim, RunEventQueue, ContextSession]:
        """Claim a run and open its session. `settings` overrides the run's settings."""
        claim = await self.scene.seeds.claim_run(session=True)
        events = self.scene.open(claim, settings=Settings(store_url="redis://127.0.0.1/0", **settings))
        session = await self.open_session(events)
        assert session is current_session()
        return claim, events, session

    async def open_session(self, events: RunEventQueue) -> ContextSession:
        """Open the session of a run."""
        session = (await self.scene.open_features(events, session=True)).feature(ContextSession)
        assert session is not None
        return session

    async def settle(self, claim: Claim, events: RunEventQueue, outcome: Any = None) -> Failure | None:
        failure = await self.scene.settle(claim, events, outcome)
        assert self.scene.published == []
        return failure

    async def state(self) -> dict[str, Any]:
        """Return the session state that the next run receives."""
        return (await self.begin())[2].state


@pytest.fixture
def seeds(scene: Scene) -> Seeds:
    return scene.seeds


@pytest.fixture
def runs(scene: Scene) -> Runs:
    return Runs(scene)


@pytest.mark.parametrize(
    "state",
    [
        {"text": "ü \n \u2028", "number": 1.5, "deep": [{"a": None}, [True]], "": "empty"},
        {"half of a character": "\ud83d", "large": 2**60 + 1},
    ],
)
async def test_a_state_is_restored_unchanged(runs: Runs, state: Any) -> None:
    claim, events, session = await runs.begin()
    assert (session.state, session.version, session.resumed) == ({}, 0, False)

    await session.checkpoint(state)

    assert session.state is state
    assert (session.version, await runs.state()) == (1, state)
    session.state["more"] = 1
    assert await runs.settle(claim, events) is None
    assert await runs.state() == state


async def test_an_unchanged_session_is_not_written(runs: Runs) -> None:
    claim, events, session = await runs.begin()
    await session.checkpoint({"a": 1})
    calls_before = list(runs.scene.gate.calls)

    await session.checkpoint()
    await session.checkpoint({"a": 1})

    assert runs.scene.gate.calls == calls_before
    await runs.settle(claim, events)
    assert (await runs.begin())[2].version == 1


CIRCLE: list[Any] = []
CIRCLE.append(CIRCLE)


@pytest.mark.parametrize(
    ("state", "error"),
    [
        ([1], "a dict, not list"),
        (None, "a dict, not NoneType"),
        ({"a": {1, 2}}, "set is not JSON"),
        ({"a": b"bytes"}, "bytes is not JSON"),
        ({"a": math.nan}, "not JSON compliant"),
        ({"a": CIRCLE}, "Circular"),
        ({"a": [{1: 2}]}, "must be strings, not 1"),
        ({None: 1}, "must be strings, not None"),
        ({"a": "ü" * (MAX_STATE_BYTES // 2)}, "1048576 bytes as JSON, and this one has 1048584"),
    ],
)
@pytest.mark.parametrize("how", [Completed(), Paused(INPUT_REQUIRED, None)])
async def test_an_invalid_state_is_refused_at_a_checkpoint_and_fails_the_run_at_its_end(
    runs: Runs, store: AsyncStore, keys: Keys, seeds: Seeds, state: Any, error: str, how: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    claim, events, session = await runs.begin()
    await session.checkpoint({"kept": True})
    if state is not None:
        with pytest.raises(SessionError) as exc_info:
            await session.checkpoint(state)
        assert error in str(exc_info.value)
        assert session.state == {"kept": True}
    session.state = state

    result = await runs.settle(claim, events, how)

    assert isinstance(result, Failure)
    assert error in caplog.text
    assert f"[reference {result.reference}]" in caplog.text
    task = await seeds.task(claim.ref.task_id)
    assert task.status.state == FAILED
    assert task.status.message.parts[0].text.startswith(AGENT_FAILED.rstrip("."))
    assert error not in str(task)
    assert await runs.state() == {"kept": True}
    await seeds.require_consistent(claim.ref.task_id)


async def test_an_end_sent_by_the_agent_waits_for_its_session(runs: Runs, seeds: Seeds) -> None:
    claim = await seeds.claim_run(session=True)
    events = runs.scene.open(claim, hold=0, ends_on_return=True)
    session = await runs.open_session(events)
    await events.enqueue_event(chunk("a"))
    await events.enqueue_event(status(COMPLETED, "bye"))
    await session.checkpoint({"a": 1})
    assert [e.status.state for e in [await seeds.task(claim.ref.task_id)]] != [COMPLETED]
    session.state = "nonsense"  # type: ignore[assignment]

    assert isinstance(await runs.settle(claim, events), Failure)

    assert (await seeds.states(claim.ref.task_id))[-1:] == [FAILED]
    assert await runs.state() == {"a": 1}


async def test_an_answer_without_a_task_fails_too_if_its_session_is_invalid(runs: Runs, seeds: Seeds) -> None:
    claim = await seeds.claim_run(session=True, working=False)
    events = runs.scene.open(claim, hold=0, ends_on_return=True)
    session = await runs.open_session(events)
    session.state = None  # type: ignore[assignment]
    await events.enqueue_event(Message(message_id="m", role=Role.ROLE_AGENT, parts=[Part(text="42")]))

    assert isinstance(await runs.settle(claim, events), Failure)
    assert (await seeds.task(claim.ref.task_id)).status.state == FAILED


@pytest.mark.parametrize("is_held", [True, False])
async def test_a_run_whose_end_waits_for_its_agent_can_still_be_lost(runs: Runs, seeds: Seeds, is_held: bool) -> None:
    claim = await seeds.claim_run(session=True)
    events = runs.scene.open(claim, hold=0, ends_on_return=is_held)
    host: Any = SimpleNamespace(clock=SYSTEM_CLOCK)
    run = Run(host, agent(session=True), claim.ref, Limits())
    run._events = events
    await events.enqueue_event(status(COMPLETED))

    run.give_up()

    assert run.ended is not is_held
    assert (run._stopped is not None) is is_held, "its agent is stopped, and its lease is renewed until then"


async def test_the_later_of_two_writers_gets_a_conflict(runs: Runs, seeds: Seeds) -> None:
    first, other = await runs.begin(), await runs.begin()
    await first[2].checkpoint({"by": "one"})

    with pytest.raises(SessionConflict, match=r"had read version 0: it is at 1"):
        await other[2].checkpoint({"by": "other"})
    other[2].state = {"by": "other"}
    assert isinstance(await runs.settle(*other[:2]), Failure)

    assert await runs.settle(*first[:2]) is None
    assert await runs.state() == {"by": "one"}
    assert (await seeds.task(other[0].ref.task_id)).status.state == FAILED


async def test_a_run_that_only_reads_its_session_has_no_conflict(runs: Runs, seeds: Seeds) -> None:
    first, other = await runs.begin(), await runs.begin()
    await first[2].checkpoint({"by": "one"})

    assert await runs.settle(*other[:2]) is None

    assert (await seeds.task(other[0].ref.task_id)).status.state == COMPLETED


async def test_a_checkpoint_follows_earlier_events(runs: Runs, seeds: Seeds) -> None:
    claim, events, session = await runs.begin()
    for number in range(100):
        await events.enqueue_event(chunk(f"{number} "))

    await session.checkpoint({"a": 1})

    (part,) = (await seeds.task(claim.ref.task_id)).artifacts[0].parts
    assert part.text == "".join(f"{number} " for number in range(100))
    assert runs.scene.gate.calls[-1] == "checkpoint"


async def test_a_checkpoint_of_a_lost_run_ends_its_agent(runs: Runs, store: AsyncStore, keys: Keys) -> None:
    claim, events, session = await runs.begin()
    await store.redis.hset(keys.task(claim.ref.task_id).record, "token", "another's")

    with pytest.raises(asyncio.CancelledError):
        await session.checkpoint({"a": 1})

    assert runs.scene.run_of(events).is_lost
    await store.redis.hset(keys.task(claim.ref.task_id).record, "token", claim.token)
    assert not await store.redis.exists(session_key(keys, ANN, CONTEXT))


async def test_a_checkpoint_is_repeated_during_an_outage_and_has_one_effect(runs: Runs) -> None:
    _, _, session = await runs.begin()
    runs.scene.gate.refuse, runs.scene.gate.lose_answers = 2, 0
    await session.checkpoint({"a": 1})
    runs.scene.gate.lose_answers = 1
    await session.checkpoint({"a": 2})

    assert session.version == 2
    assert await runs.state() == {"a": 2}


async def test_a_sealed_session_cannot_be_read_in_the_store(runs: Runs, store: AsyncStore, keys: Keys) -> None:
    _, _, session = await runs.begin(secret_key=OLD)
    await session.checkpoint({"a": "private"})
    state = await store.redis.hget(session_key(keys, ANN, CONTEXT), "state")

    assert b"private" not in state
    assert (await runs.begin(secret_key=[NEW, OLD]))[2].state == {"a": "private"}


@pytest.mark.parametrize(("key", "reason"), [(None, "a2a_secret_key is not set"), (NEW, "not in a2a_secret_key")])
async def test_a_sealed_session_is_not_opened_without_its_key(runs: Runs, key: str | None, reason: str) -> None:
    await (await runs.begin(secret_key=OLD))[2].checkpoint({"a": 1})

    with pytest.raises(SessionError, match=rf"context 'the-context' cannot be opened: .*{reason}"):
        await runs.begin(secret_key=key)


async def test_a_session_sealed_for_another_context_is_not_opened(runs: Runs, store: AsyncStore, keys: Keys) -> None:
    await (await runs.begin(secret_key=OLD))[2].checkpoint({"a": 1})
    other_key = session_key(keys, ANN, "another")
    await store.redis.copy(session_key(keys, ANN, CONTEXT), other_key)
    await store.redis.expire(other_key, 60)
    claim = await runs.scene.seeds.claim_run(session=True, context_id="another")
    events = runs.scene.open(claim, settings=Settings(store_url="redis://127.0.0.1/0", secret_key=OLD))

    with pytest.raises(SessionError, match="another purpose"):
        ContextSession(runs.scene.run_of(events), events)


async def test_a_plain_session_is_sealed_at_its_next_save_with_a_key(runs: Runs, store: AsyncStore, keys: Keys) -> None:
    await (await runs.begin())[2].checkpoint({"a": "private"})
    _, _, session = await runs.begin(secret_key=NEW)

    await session.checkpoint({"a": "private", "b": 1})

    assert b"private" not in await store.redis.hget(session_key(keys, ANN, CONTEXT), "state")


async def test_the_history_spans_tasks_and_starts_with_the_oldest_message(runs: Runs, seeds: Seeds) -> None:
    for number in range(3):
        claim = await seeds.claim_run(session=True)
        await seeds.settle_run(claim, chunk(f"made {number}"), status(COMPLETED, f"done {number}"))
    await seeds.claim_run(context_id="another")
    _, _, session = await runs.begin()

    texts = [(m.role == Role.ROLE_USER, m.parts[0].text) for m in await session.history()]

    messages = [(True, "hello"), (False, "made {}"), (False, "done {}")]
    assert texts == [*((user, text.format(n)) for n in range(3) for user, text in messages), (True, "hello")]
    assert [m.parts[0].text for m in await session.history(2)] == ["done 2", "hello"]
    assert "made" not in str(await session.history(artifacts=False))
    assert await session.history(0) == []


async def test_an_agent_without_a_session_gets_an_error_with_the_option(scene: Scene) -> None:
    _, events = await scene.begin()
    run = await scene.open_features(events)
    begin_agent(RunningAgent(run, events))
    turn = Turn(run, events, caller=None)  # type: ignore[arg-type]

    with pytest.raises(ConfigError, match="agent 'agent' has no session: give it the option session=True"):
        _ = turn.session
    with pytest.raises(ConfigError, match="session=True"):
        await turn.checkpoint()
    assert current_session() is None


async def cancel_checkpoint(runs: Runs, session: ContextSession, state: dict[str, Any]) -> None:
    """Make a checkpoint whose caller is cancelled before the reply."""
    gate = runs.scene.gate
    gate.lose_answers = 1
    saving = asyncio.create_task(session.checkpoint(state))

    async def is_made() -> bool:
        return not gate.lose_answers

    await until(is_made)
    saving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await saving


@pytest.mark.parametrize("is_repeated", [True, False])
async def test_a_checkpoint_with_a_cancelled_caller_belongs_to_the_run(
    runs: Runs, is_repeated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim, events, session = await runs.begin()
    await cancel_checkpoint(runs, session, {"a": 1})

    if is_repeated:
        await session.checkpoint({"a": 2})
        assert await runs.state() == {"a": 2}
    session.state = {"a": 3}

    assert await runs.settle(claim, events) is None
    assert await runs.state() == {"a": 3}


async def test_a_waiting_checkpoint_does_not_delay_the_end(runs: Runs, seeds: Seeds) -> None:
    claim, events, session = await runs.begin()
    await events.enqueue_event(chunk("a"))
    saving = asyncio.create_task(session.checkpoint({"a": 1}))
    await asyncio.sleep(0)
    await asyncio.sleep(0)  # the checkpoint waits for the chunk

    await runs.settle(claim, events, Failure())

    await asyncio.wait({saving}, timeout=10)
    assert saving.cancelled()
    assert (await seeds.task(claim.ref.task_id)).status.state == FAILED
    assert await runs.state() == {}, "or it would be there before what was said before it"


async def test_a_session_that_expires_during_its_run_causes_no_conflict(
    runs: Runs, store: AsyncStore, keys: Keys
) -> None:
    await (await runs.begin())[2].checkpoint({"a": 1})
    claim, events, session = await runs.begin()
    await store.redis.delete(session_key(keys, ANN, CONTEXT))  # like an expiry

    await session.checkpoint({"a": 2})
    await store.redis.delete(session_key(keys, ANN, CONTEXT))
    session.state = {"a": 3}
    assert await runs.settle(claim, events) is None

    assert await runs.state() == {"a": 3}


@pytest.mark.parametrize("waiting", [3, 60])
async def test_messages_that_wait_for_their_turn_are_not_in_the_history(runs: Runs, seeds: Seeds, waiting: int) -> None:
    store, keys = seeds.store, seeds.keys
    question_claim = await seeds.claim_run(await seeds.create_task(serialize_context=True), session=True)
    await seeds.settle_run(question_claim, chunk("made"), status(INPUT_REQUIRED, "which?"))
    claim = await seeds.claim_run(await seeds.create_task(serialize_context=True), session=True, working=False)
    answer = request("this", question_claim.ref.task_id, CONTEXT)
    await store.run(continue_task(keys, ANN, question_claim.ref.task_id, answer, "", caller=b"{}", nonce="n"))
    for _ in range(waiting):
        await seeds.create_task(serialize_context=True)
    _, events = await runs.scene.begin(claim=claim)

    history = await ContextSession(runs.scene.run_of(events), events).history()

    texts_before = ["hello", "which?", "made"] if waiting < HISTORY_TASKS else []
    assert [message.parts[0].text for message in history] == [*texts_before, "hello"]
    assert history[-1].task_id == claim.ref.task_id
