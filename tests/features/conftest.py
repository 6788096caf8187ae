"""Fixtures for the tests of features."""

from tests.store.conftest import command, nothing_leaks, schema_record, seeds

__all__ = ["command", "nothing_leaks", "schema_record", "seeds"]
