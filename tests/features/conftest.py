"""Fixtures for the tests of features."""

from tests.store.conftest import (
    any_server,
    command,
    nothing_leaks,
    schema_record,
    seeds,
    server_of_each_version,
    task_id,
    webhooks,
)

__all__ = [
    "any_server",
    "command",
    "nothing_leaks",
    "schema_record",
    "seeds",
    "server_of_each_version",
    "task_id",
    "webhooks",
]
