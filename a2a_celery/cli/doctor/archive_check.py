"""Checks of the store's schema and of the archive for ``a2a doctor``."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ...archive import Filter, open_archive
from ...errors import A2ACeleryError, ConfigError
from ...settings import Settings
from ...settings.urls import archive_place
from ...store import Keys, Scope, SyncStore
from ...store.admin.archiving import ArchiveState, read_archive_state
from ...store.admin.schema import SCHEMA, Opened, open_store, require_compatible

MAX_DELAY = 60.0
"""Seconds that a task may be due for the archive before `a2a doctor` reports a delay."""

Line = tuple[Literal["ok", "note", "wrong"], str, str]


@dataclass(frozen=True, slots=True)
class StorageState:
    """State of the store's schema and of archiving.

    Attributes:
        database: Error of the archive's database, or "".
    """

    store: Opened
    archive: ArchiveState
    database: str = ""


def read_storage_state(store: SyncStore, keys: Keys, settings: Settings) -> StorageState:
    """Read the state of the schema and the archive.

    Raises:
        StoreUnavailable: Redis cannot be reached.
    """
    database = "" if settings.archive_url is None else asyncio.run(_database(settings.archive_url))
    return StorageState(open_store(store, keys, stamp=False), store.run(read_archive_state(keys)), database)


def storage_lines(
    state: StorageState | None, settings: Settings, watchers: Sequence[Mapping[str, Any]]
) -> Iterator[Line]:
    """Yield findings about the schema and the archive, or no findings if `state` is None."""
    if state is None:
        return
    try:
        require_compatible(state.store, None)
        yield "ok", "schema", f"{SCHEMA}, which this release needs"
    except ConfigError as e:
        yield "wrong", "schema", f"{e}."
    yield from _archive(state, settings, watchers)


def _archive(storage: StorageState, settings: Settings, watchers: Sequence[Mapping[str, Any]]) -> Iterator[Line]:
    state, url = storage.archive, settings.archive_url
    if url is None and not state.on:
        return
    if url is None:
        yield "wrong", "archive", "A2A_ARCHIVE_URL is not set here, but ended tasks are archived: set it here too."
    if storage.database:
        yield (
            "wrong",
            "archive",
            f"{storage.database}. Until it works, ended tasks stay in the store: see A2A_ARCHIVE_URL.",
        )
    place = archive_place(url)
    elsewhere = [report["watcher"] for report in watchers if report.get("archive", "") != place]
    if url is not None and elsewhere:
        yield (
            "wrong",
            "archive",
            f"these watchers have another archive or none: {', '.join(elsewhere)}. Set the same A2A_ARCHIVE_URL.",
        )
    if state.lag > MAX_DELAY:
        yield (
            "wrong",
            "archive",
            f"late: {state.due} ended tasks are due, the oldest for {state.lag:.0f} s. They stay in the store: a "
            "watcher's log has the reason.",
        )
    if state.refused:
        yield (
            "wrong",
            "archive",
            f"its database refuses {state.refused} tasks, which stay in the store: see a watcher's log.",
        )
    if url is not None and not (storage.database or elsewhere or state.lag > MAX_DELAY or state.refused):
        yield "ok", "archive", f"{state.waiting} ended tasks wait for it, none is late"


async def _database(url: str) -> str:
    try:
        archive = open_archive(url)
        try:
            await archive.page(Filter(Scope(), 0), size=0)
        finally:
            await archive.aclose()
    except A2ACeleryError as e:
        return str(e)
    return ""
