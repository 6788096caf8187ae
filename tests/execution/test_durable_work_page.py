"""Comparison of the numbers, names and examples in docs/durable-work.md with the code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from uuid import UUID

from celery import Celery

import a2a_celery
from a2a_celery import Turn
from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.execution.agents.blocking_turn import BlockingTurn
from a2a_celery.features.retries import RetryPolicy
from a2a_celery.features.steps.durable_steps import DEFAULT_RETRIES
from a2a_celery.features.steps.journal import MAX_ENTRIES, MAX_RESULT_BYTES
from a2a_celery.lifecycle.states import INPUT_REQUIRED
from a2a_celery.store import AsyncStore, Keys
from a2a_celery.store.blobs.blob_store import THRESHOLD

from .scene import TurnByTurn

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "durable-work.md").read_text(encoding="utf-8")
TEXT = " ".join(PAGE.split())


def test_its_numbers_are_those_of_the_code() -> None:
    assert f"Without an object store, a result of more than {MAX_RESULT_BYTES} bytes raises" in TEXT
    assert f"**Large results**, above {THRESHOLD} bytes, are" in TEXT
    assert f"may have at most {MAX_ENTRIES} results" in TEXT
    assert f"`default_retry_delay`, which is {DEFAULT_RETRIES.default_retry_delay:g} second" in TEXT


def test_its_names_exist() -> None:
    for owner, pattern in ((Turn, r"(?<![.\w])turn\.(?!blocking\.)(\w+)"), (BlockingTurn, r"blocking\.(\w+)")):
        names = re.findall(pattern, PAGE)
        assert names
        assert all(hasattr(owner, name) for name in names), names
    for name in ("StepError", "StepFailed", "step", "current_step_key"):
        assert name in PAGE
        assert hasattr(a2a_celery, name)
    assert all(f"`{name}`" in PAGE for name in RetryPolicy.OPTIONS)


class Hotels:
    """Hotel service of the example."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.searches: list[str] = []

    async def search(self, city: str) -> list[str]:
        self.searches.append(city)
        return [f"Grand {city}", f"Park {city}"]

    async def book(self, hotel: str, idempotency_key: str) -> str:
        self.keys.append(idempotency_key)
        return f"{hotel}, number 7"


async def test_its_examples_run(store: AsyncStore, keys: Keys, redis_server: EmbeddedRedis) -> None:
    hotels = Hotels()
    app = Celery("test", broker="memory://", set_as_current=False)
    names: dict[str, Any] = {"app": app, "hotels": hotels}
    for example in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(compile(example, "docs/durable-work.md", "exec"), names)

    async with TurnByTurn(names["a2a"], store, keys, redis_server.store_url) as turns:
        assert await turns.begin("travel", "Oslo") == (INPUT_REQUIRED, "Which one? Grand Oslo, Park Oslo")
        assert await turns.answer("travel", "Park Oslo") == ["Booked: Park Oslo, number 7"]

    assert hotels.searches == ["Oslo"]
    assert [str(UUID(key)) for key in hotels.keys] == hotels.keys
    assert len(hotels.keys) == 1
