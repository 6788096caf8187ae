"""Fixtures for the tests of steering messages."""

from tests.execution.conftest import scene

__all__ = ["scene"]
