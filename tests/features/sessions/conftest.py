"""Fixtures for the tests of sessions."""

from tests.execution.conftest import scene

__all__ = ["scene"]
