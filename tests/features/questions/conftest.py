"""Fixtures for the tests of questions."""

from tests.execution.conftest import turns

__all__ = ["turns"]
