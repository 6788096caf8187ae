"""Every test of the store ends with the leak checker: whatever it did, no key may break its rule."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from a2a_celery.store import AsyncStore, Keys
from tests.support.leaks import leaks
from tests.support.seeds import Seeds


@pytest.fixture
def seeds(store: AsyncStore, keys: Keys) -> Seeds:
    """Makes and reads tasks."""
    return Seeds(store, keys)


@pytest.fixture(autouse=True)
async def nothing_leaks(store: AsyncStore, keys: Keys) -> AsyncIterator[None]:
    """The leak checker, after the test."""
    yield
    assert await leaks(store, keys) == []
