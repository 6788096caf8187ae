"""Durable steps. Each step is executed once, whatever the outcome of its run, and its result is recorded before it is
used."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from time import time_ns
from typing import Any, cast

import pytest
from celery.exceptions import SoftTimeLimitExceeded

from a2a_celery import ConfigError, StepError, StepsChanged, Turn, current_step_key, step
from a2a_celery.features.steps import durable_steps
from a2a_celery.features.steps.journal import MAX_RESULT_BYTES, RunJournal
from a2a_celery.settings import Settings
from a2a_celery.store.runs.journal import read_recorded
from tests.execution.attempts import Calls, Task, WorkerDies
from tests.execution.scene import Scene


async def test_a_later_attempt_receives_the_results_and_repeats_nothing(task: Task, calls: Calls) -> None:
    def agent(die_at: str) -> Callable[[Turn], Any]:
        async def run(turn: Turn) -> list[str]:
            return [await turn.step("work", calls.work, name, dies=name == die_at) for name in ("a", "b", "c")]

        return run

    for name in ("a", "b", "c"):
        assert await task.attempt(agent(name)) is None

    assert await task.attempt(agent("")) == ["done: a", "done: b", "done: c"]
    assert calls.made == ["a", "a", "b", "b", "c", "c"], "only the step that was being executed is executed again"


async def test_a_result_is_stored_before_it_is_used(task: Task, scene: Scene, calls: Calls) -> None:
    async def agent(turn: Turn) -> str:
        result = await turn.step("work", calls.work, "a")
        names = scene.keys.task(turn.task_id)
        assert await scene.gate.store.redis.hkeys(names.journal) == [b"work#1"]
        return str(result)

    assert await task.attempt(agent) == "done: a"


async def test_a_step_costs_one_write_with_the_events_before_it(task: Task, scene: Scene, calls: Calls) -> None:
    async def agent(turn: Turn) -> None:
        scene.gate.calls.clear()
        await turn.say("working")
        await turn.step("work", calls.work, "a")
        assert scene.gate.calls == ["append"]

    await task.attempt(agent)
    scene.gate.calls.clear()

    async def repeat(turn: Turn) -> None:
        await turn.step("work", calls.work, "a")

    await task.attempt(repeat)
    assert "append" not in scene.gate.calls


async def test_a_run_that_is_lost_does_not_use_the_result(task: Task, scene: Scene, calls: Calls) -> None:
    async def agent(turn: Turn) -> None:
        await scene.gate.store.redis.hset(scene.keys.task(turn.task_id).record, "token", "of another claim")
        await turn.step("work", calls.work, "a")
        calls.made.append("used")

    with pytest.raises(asyncio.CancelledError):
        await task.attempt(agent)
    assert calls.made == ["a"]


async def test_a_plain_step_that_raises_stop_iteration_does_not_wait_forever(task: Task) -> None:
    async def agent(turn: Turn) -> None:
        with pytest.raises(RuntimeError, match="StopIteration was raised"):
            await asyncio.wait_for(turn.step("first", next, iter([])), 10)

    await task.attempt(agent)


@pytest.mark.parametrize("name", ["", "x" * 201, None, 3])
async def test_a_name_is_text(task: Task, name: Any) -> None:
    async def agent(turn: Turn) -> None:
        with pytest.raises(StepError, match="text of 1 to 200 characters"):
            await turn.step(name, asyncio.sleep, 0)

    await task.attempt(agent)


async def test_parallel_steps_of_one_name_keep_their_results_in_any_order(task: Task, calls: Calls) -> None:
    def agent(order: list[str]) -> Callable[[Turn], Any]:
        async def run(turn: Turn) -> list[str]:
            turns_taken = {name: asyncio.Event() for name in order}
            turns_taken[order[0]].set()

            async def branch(name: str) -> str:
                await turns_taken[name].wait()
                result = await turn.step("work", calls.work, name)
                later_entries = order[order.index(name) + 1 :]
                if later_entries:
                    turns_taken[later_entries[0]].set()
                return cast(str, result)

            return list(await asyncio.gather(*(branch(name) for name in ("a", "b", "c"))))

        return run

    expected = ["done: a", "done: b", "done: c"]
    assert await task.attempt(agent(["a", "b", "c"])) == expected
    assert await task.attempt(agent(["c", "a", "b"])) == expected
    assert calls.made == ["a", "b", "c"]


async def test_equal_parallel_steps_are_separate(task: Task, calls: Calls) -> None:
    async def agent(turn: Turn) -> None:
        await asyncio.gather(*(turn.step("work", calls.work, "same") for _ in range(3)))

    await task.attempt(agent)
    await task.attempt(agent)

    assert calls.made == ["same"] * 3


async def test_an_agent_without_recorded_calls_opens_no_journal(task: Task) -> None:
    async def agent(turn: Turn) -> str:
        return turn.text

    assert await task.attempt(agent) == "hello"
    assert task.open_run.features == ()


async def test_a_journal_that_another_asyncio_task_opens_orders_the_calls_of_the_agent(
    task: Task, calls: Calls
) -> None:
    def agent(*names: str) -> Callable[[Turn], Any]:
        async def run(turn: Turn) -> None:
            await asyncio.create_task(turn.step("parallel", calls.work, "a"))
            for name in names:
                await turn.step(name, calls.work, name)

        return run

    await task.attempt(agent("b", "c"))

    with pytest.raises(StepsChanged, match="c#1 was call 2 of the agent, and is call 1 now"):
        await task.attempt(agent("c", "b"))
    assert calls.made == ["a", "b", "c"]


async def test_a_step_within_a_step_is_recorded(task: Task, calls: Calls) -> None:
    def agent(dies: bool) -> Callable[[Turn], Any]:
        async def outer(turn: Turn, name: str) -> str:
            inner = await turn.step("inner", calls.work, "inner")
            return f"{name}: {inner}" + await calls.work("outer", dies=dies and name == "second")

        async def run(turn: Turn) -> list[str]:
            first = await turn.step("outer", outer, turn, "first")
            return [first, await turn.step("outer", outer, turn, "second"), await turn.step("last", calls.work, "last")]

        return run

    await task.attempt(agent(dies=True))
    assert calls.made == ["inner", "outer", "inner", "outer"]
    await task.attempt(agent(dies=False))
    assert calls.made == ["inner", "outer", "inner", "outer", "outer", "last"]
    await task.attempt(agent(dies=False))
    assert len(calls.made) == 6


async def test_a_step_that_the_agent_stopped_waiting_for_is_no_false_alarm(task: Task, calls: Calls) -> None:
    async def agent(turn: Turn) -> str:
        with suppress(TimeoutError):
            async with asyncio.timeout(0.01):
                await turn.step("slow", asyncio.sleep, 60)
        return cast(str, await turn.step("work", calls.work, "after"))

    assert await task.attempt(agent) == "done: after"
    assert await task.attempt(agent) == "done: after"
    assert calls.made == ["after"]


async def test_retries_of_a_step(task: Task, calls: Calls) -> None:
    @step(autoretry_for=(ConnectionError,), max_retries=3, default_retry_delay=0)
    async def fetch(times: int) -> str:
        calls.made.append("try")
        if len(calls.made) <= times:
            raise ConnectionError("away")
        return "page"

    async def agent(turn: Turn) -> str:
        return await fetch(3)

    assert await task.attempt(agent) == "page"
    assert await task.attempt(agent) == "page"
    assert calls.made == ["try"] * 4


async def test_a_result_names_the_run_the_attempts_and_the_time_of_its_call(task: Task, scene: Scene) -> None:
    failures = [ConnectionError("away")] * 2

    @step(autoretry_for=(ConnectionError,), max_retries=3, default_retry_delay=0)
    async def fetch() -> None:
        if failures:
            raise failures.pop()

    async def agent(turn: Turn) -> None:
        await turn.step("first", asyncio.sleep, 0)
        if task.run == 1:
            raise WorkerDies
        await fetch()

    began_us = time_ns() // 1000
    await task.attempt(agent)
    await task.attempt(agent)
    await task.attempt(agent)

    recorded = await scene.gate.store.run(read_recorded(scene.keys, task.task_id, max_content=4))
    executions = {item.entry.key: item.entry.execution for item in recorded.entries}
    first, second = executions["first#1"], executions["fetch#1"]
    assert first is not None
    assert second is not None
    assert [(first.run, first.attempts), (second.run, second.attempts)] == [(1, 1), (2, 3)]
    assert began_us - 1000 <= first.began_us <= second.began_us <= time_ns() // 1000
    assert 0 <= second.duration_us < 60_000_000


async def test_retries_of_a_step_are_bounded_and_have_their_classes(task: Task, calls: Calls) -> None:
    @step(
        name="fetch",
        autoretry_for=(OSError,),
        dont_autoretry_for=(FileNotFoundError,),
        max_retries=2,
        default_retry_delay=0,
    )
    async def fetch(error: Exception) -> str:
        calls.made.append(type(error).__name__)
        raise error

    async def agent(turn: Turn) -> None:
        for error in (ConnectionError(), FileNotFoundError(), ValueError()):
            with pytest.raises(type(error)):
                await fetch(error)

    await task.attempt(agent)
    assert calls.made == ["ConnectionError"] * 3 + ["FileNotFoundError", "ValueError"]


async def test_a_timeout_of_a_step(task: Task) -> None:
    @step(timeout=0.01, autoretry_for=(TimeoutError,), max_retries=1, default_retry_delay=0)
    async def slow() -> None:
        await asyncio.sleep(60)

    async def agent(turn: Turn) -> None:
        with pytest.raises(TimeoutError):
            await slow()

    await task.attempt(agent)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"retries": 3}, "unknown option 'retries'; known: autoretry_for"),
        ({"max_retries": 3}, "max_retries has no effect without autoretry_for"),
        ({"autoretry_for": ValueError}, "a tuple of exception classes"),
        ({"timeout": 0}, "timeout = 0: a number of seconds above 0"),
        ({"timeout": True}, "timeout = True"),
    ],
)
def test_options_are_checked(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text.replace("(", r"\(")):
        step(**options)(asyncio.sleep)


def test_a_timeout_of_a_plain_function_is_refused() -> None:
    with pytest.raises(ConfigError, match="timeout needs an async function"):

        @step(timeout=3)
        def work() -> None: ...


async def test_a_decorated_function_is_an_ordinary_function_outside_of_a_run() -> None:
    @step
    async def double(n: int) -> int:
        """Double n."""
        return 2 * n

    @step(name="half")
    def half(n: int) -> object:
        return object()

    assert await double(2) == 4
    assert double.__doc__ == "Double n."
    assert type(half(1)) is object


async def test_the_key_of_a_step_is_the_same_in_each_attempt(task: Task) -> None:
    keys: list[str] = []

    def agent(dies: bool) -> Callable[[Turn], Any]:
        async def work(turn: Turn) -> None:
            assert turn.step_key == current_step_key()
            keys.append(current_step_key())
            if dies and len(keys) == 2:
                raise WorkerDies

        async def run(turn: Turn) -> None:
            await turn.step("work", work, turn)
            await turn.step("work", work, turn)

        return run

    await task.attempt(agent(dies=True))
    await task.attempt(agent(dies=False))

    assert keys[1] == keys[2]
    assert len(set(keys)) == 2
    with pytest.raises(RuntimeError, match="no durable step"):
        current_step_key()


async def test_a_requeued_task_has_the_results_and_the_keys(task: Task, scene: Scene, calls: Calls) -> None:
    keys: list[str] = []

    def agent(dies: bool) -> Callable[[Turn], Any]:
        async def dying() -> None:
            keys.append(current_step_key())
            if dies:
                raise WorkerDies

        async def run(turn: Turn) -> None:
            await turn.step("work", calls.work, "a")
            await turn.step("dying", dying)

        return run

    await task.attempt(agent(dies=True))
    last = await scene.seeds.claim_run(task.task_id, run=task.run)
    await scene.seeds.recover_run(last.ref)
    task.task_id, _ = await scene.seeds.requeue_task(task.task_id)
    task.run = 1
    await task.attempt(agent(dies=False))

    assert calls.made == ["a"]
    assert keys[0] == keys[1]


async def test_a_synchronous_agent_has_steps(task: Task, calls: Calls) -> None:
    keys: list[tuple[str, str]] = []

    @step
    def shout(name: str) -> str:
        return calls.work_in_thread(name)

    def agent(dies: bool) -> Callable[[Turn], Any]:
        def run(turn: Turn) -> list[str]:
            first = turn.blocking.step("a", calls.work_in_thread, "a")
            second = turn.blocking.step("b", calls.work, "b")
            third = shout("c")
            turn.blocking.step("key", lambda: keys.append((turn.blocking.step_key, current_step_key())))
            if dies:
                raise WorkerDies
            return [first, second, third]

        return run

    await task.attempt(agent(dies=True))

    assert await task.attempt(agent(dies=False)) == ["done: a", "done: b", "done: c"]
    assert calls.made == ["a", "b", "c"]
    [(key, current_key)] = keys
    assert key == current_key
    with pytest.raises(StepsChanged, match="b#1 was call 2"):
        await task.attempt(lambda turn: turn.blocking.step("b", calls.work, "b"))


async def test_threads_of_a_synchronous_agent_have_parallel_steps(task: Task, calls: Calls) -> None:
    def agent(turn: Turn) -> None:
        def work(name: str) -> None:
            turn.blocking.step("work", calls.work_in_thread, name)

        threads = [threading.Thread(target=work, args=(name,)) for name in ("a", "b")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    await task.attempt(agent)
    await task.attempt(agent)

    assert sorted(calls.made) == ["a", "b"]


async def test_a_plain_step_of_a_synchronous_agent_is_recorded_though_the_run_must_stop(
    task: Task, calls: Calls
) -> None:

    def stopped_in_step(turn: Turn) -> None:
        def work() -> str:
            task.open_run.stop()
            return calls.work_in_thread("a")

        turn.blocking.step("work", work)
        calls.made.append("used")

    with pytest.raises(asyncio.CancelledError):
        await task.attempt(stopped_in_step)
    assert await task.attempt(lambda turn: turn.blocking.step("work", calls.work_in_thread, "a")) == "done: a"
    assert calls.made == ["a"]


async def test_a_plain_step_of_an_async_agent_is_recorded_though_the_agent_is_cancelled(
    task: Task, calls: Calls
) -> None:
    has_begun, is_released = threading.Event(), threading.Event()

    def work() -> str:
        has_begun.set()
        assert is_released.wait(20)
        return calls.work_in_thread("a")

    async def agent(turn: Turn) -> Any:
        current_task = asyncio.current_task()
        assert current_task is not None

        async def cancel() -> None:
            await asyncio.to_thread(has_begun.wait, 20)
            current_task.cancel()
            is_released.set()

        canceller = asyncio.create_task(cancel())
        result = await turn.step("work", work)
        return result, canceller

    async def repeat(turn: Turn) -> Any:
        return await turn.step("work", work)

    with pytest.raises(asyncio.CancelledError):
        await task.attempt(agent)

    assert await task.attempt(repeat) == "done: a"
    assert calls.made == ["a"]


async def test_a_plain_decorated_function_does_not_block_the_event_loop(task: Task) -> None:
    @step
    def plain() -> None: ...

    async def agent(turn: Turn) -> None:
        with pytest.raises(RuntimeError, match=r"plain is a plain function: await turn.step\('plain', …\) here"):
            plain()
        await turn.step("plain", plain)

    await task.attempt(agent)


async def test_a_large_journal_is_replayed(scene: Scene) -> None:
    task = Task(scene, Settings(store_url="redis://127.0.0.1/0"))
    results = []

    async def work(n: int) -> str:
        results.append(n)
        return str(n) * 200_000

    async def agent(turn: Turn) -> list[int]:
        return [len(await turn.step("work", work, n)) for n in range(8)]

    assert await task.attempt(agent) == await task.attempt(agent) == [200_000] * 8
    assert results == list(range(8))


async def test_a_blocking_call_that_is_cancelled_is_no_exception_of_the_agent(task: Task, calls: Calls) -> None:
    def agent(turn: Turn) -> None:
        async def cancel(*args: Any, **kwargs: Any) -> None:
            raise asyncio.CancelledError

        turn.say = cancel  # type: ignore[method-assign]
        try:
            turn.blocking.say("working")
        except Exception as error:
            calls.made.append(type(error).__name__)

    with pytest.raises(asyncio.CancelledError):
        await task.attempt(agent)
    assert calls.made == []


async def test_a_timeout_of_the_agent_around_a_step_in_a_thread(task: Task) -> None:
    may_end = threading.Event()

    async def agent(turn: Turn) -> Any:
        try:
            async with asyncio.timeout(0.05):
                asyncio.get_running_loop().call_later(0.2, may_end.set)
                await turn.step("slow", may_end.wait, 60)
        except TimeoutError:
            return "late"

    assert await task.attempt(agent) == "late"


async def test_a_cancellation_while_a_result_is_written_leaves_the_result(
    task: Task, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    record, is_written = RunJournal.record, asyncio.Event()

    async def record_slowly(journal: RunJournal, *arguments: Any) -> None:
        await record(journal, *arguments)
        is_written.set()
        await asyncio.Event().wait()

    async def cancels(turn: Turn) -> Any:
        charging = asyncio.create_task(turn.step("charge", calls.work, "charge"))
        await is_written.wait()
        monkeypatch.undo()
        charging.cancel()
        with suppress(asyncio.CancelledError):
            await charging
        await turn.step("next", calls.work, "next")

    async def waits(turn: Turn) -> Any:
        await asyncio.create_task(turn.step("charge", calls.work, "charge"))
        await turn.step("next", calls.work, "next")

    monkeypatch.setattr(RunJournal, "record", record_slowly)
    await task.attempt(cancels)
    await task.attempt(waits)

    assert calls.made == ["charge", "next"]


async def test_an_interrupted_thread_leaves_the_result_that_is_written(
    task: Task, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(future: Any) -> None:
        raise SoftTimeLimitExceeded

    def interrupted(turn: Turn) -> None:
        monkeypatch.setattr(durable_steps, "result_of", interrupt)
        with pytest.raises(SoftTimeLimitExceeded):
            turn.blocking.step("charge", calls.work_in_thread, "charge")
        monkeypatch.undo()
        turn.blocking.step("next", calls.work_in_thread, "next")

    def agent(turn: Turn) -> list[str]:
        return [turn.blocking.step(name, calls.work_in_thread, name) for name in ("charge", "next")]

    await task.attempt(interrupted)

    assert await task.attempt(agent) == ["done: charge", "done: next"]
    assert calls.made == ["charge", "next"]


async def test_a_refused_result_of_a_thread_is_a_failure_of_its_step(task: Task, calls: Calls) -> None:
    def work() -> str:
        calls.made.append("large")
        return "x" * MAX_RESULT_BYTES

    def agent(turn: Turn) -> str:
        with pytest.raises(StepError, match=f"may have {MAX_RESULT_BYTES}: set a2a_blob_url"):
            turn.blocking.step("large", work)
        return cast(str, turn.blocking.step("next", calls.work_in_thread, "next"))

    assert await task.attempt(agent) == await task.attempt(agent) == "done: next"
    assert calls.made == ["large", "next"]
