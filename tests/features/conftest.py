"""Fixtures for the tests of features."""

from tests.store.conftest import nothing_leaks, seeds

__all__ = ["nothing_leaks", "seeds"]
