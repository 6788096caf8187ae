"""Fixtures for the tests of retries."""

from tests.execution.conftest import scene

__all__ = ["scene"]
