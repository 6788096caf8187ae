"""Fixtures for the tests of features."""

from tests.store.conftest import command, nothing_leaks, schema_record, seeds, task_id, webhooks

__all__ = ["command", "nothing_leaks", "schema_record", "seeds", "task_id", "webhooks"]
