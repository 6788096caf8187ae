"""URLs of SQL databases, read without SQLAlchemy: most processes have no archive, and need none to know their
settings."""

from __future__ import annotations

from urllib.parse import urlsplit

ARCHIVE_DRIVERS = ("postgresql+asyncpg", "mysql+aiomysql", "mariadb+aiomysql", "sqlite+aiosqlite")
ARCHIVE_RULE = f"one of {', '.join(ARCHIVE_DRIVERS)}, then :// and a database that all processes reach"


def is_archive_url(url: str) -> bool:
    """Whether it names a database that outlives the process, and a driver that goes with an event loop."""
    driver, separator, rest = url.partition("://")
    database = rest.partition("?")[0].partition("/")[2]
    return driver in ARCHIVE_DRIVERS and bool(separator) and database not in ("", ":memory:")


def archive_place(url: str | None) -> str:
    """Which database that is, without who asks: to compare processes by; "" for none."""
    if url is None:
        return ""
    parts = urlsplit(url)
    return f"{parts.scheme.partition('+')[0]}://{parts.netloc.rpartition('@')[2]}{parts.path}"
