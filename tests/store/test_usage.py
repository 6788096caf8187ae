"""Values and output of ``a2a stats``."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from click.testing import CliRunner, Result

from a2a_celery import A2A, Turn
from a2a_celery.cli.commands import a2a as commands
from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.lifecycle.states import AUTH_REQUIRED, COMPLETED
from a2a_celery.store import AsyncStore, Keys, SyncStore
from a2a_celery.store.admin.usage import StoreUsage, usage
from tests.support.store.seeds import Seeds

pytestmark = pytest.mark.usefixtures("schema_record")


def store_usage(redis_server: EmbeddedRedis, keys: Keys, **options: int) -> StoreUsage:
    store = SyncStore(redis_server.store_url)
    try:
        return usage(store, keys, **options)
    finally:
        store.close()


def stats(redis_server: EmbeddedRedis, *arguments: str) -> Result:
    app = Celery("tests", broker=redis_server.broker_url, set_as_current=False)
    app.conf.update(a2a_store_url=redis_server.store_url, a2a_key_prefix="test")

    async def agent(turn: Turn) -> str:
        return turn.text

    A2A(app).agent("agent")(agent)
    return CliRunner().invoke(commands, ["stats", *arguments], obj=SimpleNamespace(app=app))


async def test_an_empty_store(redis_server: EmbeddedRedis, store: AsyncStore, keys: Keys) -> None:
    usage = await asyncio.to_thread(store_usage, redis_server, keys)

    assert (usage.tasks, usage.bytes_per_task, usage.followed) == (0, None, 0)


@pytest.mark.parametrize("sample_size", [2000, 60])
async def test_tasks_are_counted_or_estimated_from_a_sample(
    redis_server: EmbeddedRedis, seeds: Seeds, keys: Keys, sample_size: int
) -> None:
    await asyncio.gather(*(seeds.create_task() for _ in range(400)))
    await seeds.store.redis.mset({f"foreign-{n}": "x" * 1000 for n in range(400)})

    usage = await asyncio.to_thread(store_usage, redis_server, keys, sample_size=sample_size)

    assert usage.tasks is not None
    assert usage.bytes_per_task is not None
    assert usage.used is not None
    assert usage.tasks == 400 if sample_size == 2000 else 200 < usage.tasks < 800
    assert 500 < usage.bytes_per_task < 10_000
    await seeds.store.redis.delete(*(f"foreign-{n}" for n in range(400)))


async def test_followed_tasks_are_counted(redis_server: EmbeddedRedis, store: AsyncStore, keys: Keys) -> None:
    async with store.redis.pubsub() as pubsub:
        await pubsub.subscribe(
            keys.task("a").notifications,
            keys.task("b").notifications,
            "another",
            keys.runner("r"),
            keys.reply_channel("w"),
        )
        assert (await pubsub.get_message(timeout=5)) is not None

        usage = await asyncio.to_thread(store_usage, redis_server, keys)

    assert usage.followed == 2


async def test_a_user_without_permissions_gets_the_other_values(
    redis_server: EmbeddedRedis, seeds: Seeds, keys: Keys
) -> None:
    await seeds.create_task()
    await seeds.store.redis.acl_setuser(
        "default", enabled=True, categories=["+@all"], commands=["-info", "-memory", "-pubsub"]
    )
    try:
        usage = await asyncio.to_thread(store_usage, redis_server, keys)
    finally:
        await seeds.store.redis.acl_setuser("default", enabled=True, categories=["+@all"])

    assert usage == StoreUsage(None, None, None, None, None)


async def test_the_usage_is_shown_as_json_and_as_text(redis_server: EmbeddedRedis, seeds: Seeds, keys: Keys) -> None:
    record = keys.task(await seeds.create_task()).record
    await seeds.store.redis.hincrby(record, "at", -7_230_000_000)  # the output rounds the age to minutes
    await seeds.create_task_in(AUTH_REQUIRED)
    await seeds.create_task_in(COMPLETED)

    output: dict[str, Any] = json.loads((await asyncio.to_thread(stats, redis_server, "--json")).stdout)
    lines = (await asyncio.to_thread(stats, redis_server)).stdout.splitlines()

    assert set(output) == {
        "at", "agents", "runs", "paused", "deadLetters", "webhooks", "store", "followed",
    }  # fmt: skip
    assert output["agents"]["agent"]["open"] == {"auth_required": 1, "submitted": 1}
    assert output["agents"]["agent"]["ended"] == {"completed": 1, "failed": 0, "canceled": 0, "rejected": 0}
    assert set(output["agents"]["agent"]) == {"open", "oldestWaitingSeconds", "ended", "lost"}
    assert output["runs"] == {"queued": 1, "blocked": 0, "running": 0, "delegated": 0, "suspended": 0}
    assert output["store"]["tasks"] == 3
    assert lines[1].split() == ["agent", "1", "2", "h", "0", "min", "0", "1", "1", "0", "0", "0", "0"]
    assert "tasks that wait for an answer: 1; dead letters: 0" in lines
    assert "posts: 0 delivered, 0 failed, 0 given up" in " ".join(lines)
    assert any(pubsub.startswith("tasks stored: about 3, ") for pubsub in lines)


@pytest.mark.parametrize(("watch", "seconds"), [(("--watch", "0.5"), 0.5), (("--watch",), 2.0)])
@pytest.mark.usefixtures("seeds")
async def test_the_command_refreshes_until_it_is_interrupted(
    redis_server: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch, watch: tuple[str, ...], seconds: float
) -> None:
    waits: list[float] = []

    class Twice:
        def wait(self, seconds: float) -> None:
            waits.append(seconds)
            if len(waits) == 2:
                raise KeyboardInterrupt

    monkeypatch.setattr("a2a_celery.cli.output.Event", Twice)

    result = await asyncio.to_thread(stats, redis_server, *watch, "--json")

    assert (result.exit_code, waits) == (0, [seconds, seconds])
    assert len(result.stdout.splitlines()) == 2
    assert "\x1b" not in result.stdout


async def test_stats_fits_a_terminal_and_names_the_scope_of_totals(
    redis_server: EmbeddedRedis, seeds: Seeds, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("a2a_celery.cli.output.terminal_width", lambda: 80)
    await seeds.create_task()

    all_agents = await asyncio.to_thread(stats, redis_server)
    one_agent = await asyncio.to_thread(stats, redis_server, "--agent", "agent")

    assert max(map(len, all_agents.output.splitlines())) <= 80
    assert "all agents" not in all_agents.output
    assert "\n\ntotals of all agents:\nruns: " in one_agent.output
