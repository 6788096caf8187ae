"""What ``a2a doctor`` asks and says about what the store is to this release, and about the archive."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ..archive import Filter, open_archive
from ..config import Settings
from ..databases import archive_place
from ..errors import A2ACeleryError, ConfigError
from ..store import Keys, Scope, SyncStore
from ..store.archiving import ArchiveState, archive_state
from ..store.schema import SCHEMA, Opened, judge, open_store

LATE = 60.0
"""Seconds that a task may be due for the archive before that is worth a word."""

Line = tuple[Literal["ok", "note", "wrong"], str, str]


@dataclass(frozen=True, slots=True)
class Keeping:
    """A store as a process finds it, its way to the archive, and what is wrong with the archive's database, "" for
    nothing."""

    store: Opened
    archive: ArchiveState
    database: str = ""


def ask(store: SyncStore, keys: Keys, settings: Settings) -> Keeping:
    """How it stands.

    Raises:
        StoreUnavailable: nobody can say.
    """
    database = "" if settings.archive_url is None else asyncio.run(_database(settings.archive_url))
    return Keeping(open_store(store, keys, stamp=False), store.run(archive_state(keys)), database)


def lines(found: Keeping | None, settings: Settings, watchers: Sequence[Mapping[str, Any]]) -> Iterator[Line]:
    """What to say of it. None: the store is away."""
    if found is None:
        return
    try:
        judge(found.store, None)
        yield "ok", "schema", f"{SCHEMA}, as this release needs it"
    except ConfigError as e:
        yield "wrong", "schema", f"{e}."
    yield from _archive(found, settings, watchers)


def _archive(found: Keeping, settings: Settings, watchers: Sequence[Mapping[str, Any]]) -> Iterator[Line]:
    state, url = found.archive, settings.archive_url
    if url is None and not state.on:
        return
    if url is None:
        yield "wrong", "archive", "A2A_ARCHIVE_URL is not set here, and ended tasks go to one: set it here too."
    if found.database:
        yield "wrong", "archive", f"{found.database}. Ended tasks stay in the store meanwhile: see A2A_ARCHIVE_URL."
    here = archive_place(url)
    elsewhere = [said["watcher"] for said in watchers if said.get("archive", "") != here]
    if url is not None and elsewhere:
        yield (
            "wrong",
            "archive",
            f"{', '.join(elsewhere)} archive elsewhere, or nowhere: A2A_ARCHIVE_URL must be the same.",
        )
    if state.behind > LATE:
        yield (
            "wrong",
            "archive",
            f"behind: {state.due} ended tasks are due, the oldest for {state.behind:.0f} s. They stay in the store: a "
            "watcher's log says why, and Redis needs the memory.",
        )
    if state.refused:
        yield (
            "wrong",
            "archive",
            f"its database refuses {state.refused} tasks, which stay in the store: see a watcher's log.",
        )
    if url is not None and not (found.database or elsewhere or state.behind > LATE or state.refused):
        yield "ok", "archive", f"{state.waiting} ended tasks will go there, none is late"


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
