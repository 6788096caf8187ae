"""Fixtures for the tests of the gateway."""

from __future__ import annotations

import pytest

from a2a_celery.gateway import protocol_errors
from a2a_celery.store.runs import publication


@pytest.fixture
def no_refusal_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse requests without a delay. test_refusal_delay.py tests the delay."""
    monkeypatch.setattr(protocol_errors, "REFUSAL_DELAY", 0)


@pytest.fixture
def short_record_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    """Record published runs after 10 ms, so that a test need not wait for the record."""
    monkeypatch.setattr(publication, "RECORD_INTERVAL", 0.01)
