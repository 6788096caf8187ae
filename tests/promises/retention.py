"""Promises of docs/retention.md and the tests that hold them."""

from __future__ import annotations

from collections.abc import Mapping

READ_TODAY = "acceptance/test_older_store.py::test_all_tasks_are_read_and_listed"

PROMISES: Mapping[str, tuple[str, ...]] = {
    "retention/the-store-s-schema/1": (
        "store/test_schema.py::test_a_migration_converts_records_to_the_current_format",
        READ_TODAY,
    ),
    "retention/the-store-s-schema/2": (
        "store/test_schema.py::test_schema_2_counts_an_owners_tasks_in_all_tenants_together",
        READ_TODAY,
    ),
    "retention/the-store-s-schema/3": (
        "store/test_schema.py::test_schema_3_records_the_scopes_of_tasks",
        READ_TODAY,
    ),
    "retention/the-store-s-schema/4": (
        "store/test_schema.py::test_schema_4_rewrites_the_packed_tasks_of_an_older_store",
        READ_TODAY,
    ),
    "retention/the-store-s-schema/5": (
        "store/test_schema.py::test_schema_5_removes_what_can_be_derived_and_converts_children",
        "features/families/test_store.py::test_schema_5_converts_tasks_with_children",
        READ_TODAY,
    ),
    "retention/the-store-s-schema/6": (
        "store/test_schema.py::test_schema_6_removes_the_messages_from_requests",
        "store/test_create_and_continue.py::test_each_message_is_stored_once",
        READ_TODAY,
    ),
}

STATEMENTS: Mapping[str, str] = {}
