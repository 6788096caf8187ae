"""Queries with Django's ORM, and the connections that they leave open. `django_database` configures Django."""

from __future__ import annotations

import psycopg2
from django.db import connection

from tests.support.processes.databases import Postgres

APPLICATION = "agents-of-a-test"
"""Name of the connections of Django."""


def query() -> int:
    """Make a query in the current thread and return its result."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
        return int(cursor.fetchone()[0])


def open_connections(database: Postgres) -> int:
    """Return the number of connections that queries have left open."""
    with psycopg2.connect(database.url.replace("+asyncpg", "")) as psql, psql.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE application_name = %s", [APPLICATION])
        return int(cursor.fetchone()[0])
