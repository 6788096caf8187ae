"""Fixtures for the tests of limits."""

from tests.store.conftest import webhooks

__all__ = ["webhooks"]
