"""Fixtures for the tests of families."""

from tests.execution.conftest import calls, scene, task, turns

__all__ = ["calls", "scene", "task", "turns"]
