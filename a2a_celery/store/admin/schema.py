"""The schema of a store: what its keys mean, as a number that every process looks at before it begins.

Releases of the same number work side by side, so a fleet can be rolled. Another number means that one of the two would
misread what the other wrote: who finds one refuses to begin, and nothing is touched until ``a2a migrate``. A store that
is empty gets the number of the first process that sees it.

A step is written once and stays: it may meet a store that nobody has looked at for years. It is carried out a page of
keys at a time, and again if it was cut off; twice at once does no harm.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import ConfigError, StoreUnavailable
from ..client.connection import AsyncStore, SyncStore
from ..keys import Keys
from ..operation import Argument, Operation, script

SCHEMA = 2
"""What this release reads and writes."""

PAGE = 1000
"""About so many keys are looked at in one go."""


@dataclass(frozen=True, slots=True)
class Migration:
    """What brings a store to schema `to`: a script that takes cursor and page, and says how many it changed."""

    to: int
    script: str
    does: str
    """For people: what of the store becomes what."""


STEPS: Sequence[Migration] = (
    Migration(
        1,
        "migrate_to_1",
        "writes into the record of each open or waiting run when it may begin and which trace it belongs to, "
        "which was read out of its options before",
    ),
    Migration(
        2,
        "migrate_to_2",
        "counts the tasks and stored bytes of an authenticated owner in all tenants together, "
        "which were counted in each tenant before",
    ),
)


@dataclass(frozen=True, slots=True)
class Opened:
    """A store as a process finds it. `schema` is 0 for one of a release that wrote none."""

    schema: int
    archives: bool
    """Whether its ended tasks go to an archive."""


async def require_schema(store: AsyncStore, keys: Keys, *, archive: bool | None = None) -> None:
    """Returns if this process may work with the store, or if it is away: then nobody can say, and `store` looks again
    before the first operation that it carries out, which may raise the same.

    `archive` says whether the process has one, and makes ended tasks go there from now on; None: it needs none.

    Raises:
        ConfigError: the store has another schema, or an archive that the process doesn't know; says what to do.
    """

    async def look() -> None:
        steps = _opening(keys, archive=bool(archive))
        operation = next(steps)
        while True:
            answer = await store.run_raw(operation)
            try:
                operation = steps.send(answer)
            except StopIteration as end:
                return judge(end.value, archive)

    try:
        await look()
        store.first = None
    except StoreUnavailable:
        store.first = look


def open_store(store: SyncStore, keys: Keys, *, stamp: bool = True) -> Opened:
    """The store as it is; one that is empty gets this release's schema first, with `stamp`.

    Raises:
        StoreUnavailable: it can't be reached.
    """
    steps = _opening(keys, archive=False, stamp=stamp)
    operation = next(steps)
    while True:
        answer = store.run(operation)
        try:
            operation = steps.send(answer)
        except StopIteration as end:
            found: Opened = end.value
            return found


def judge(found: Opened, archive: bool | None) -> None:
    """Returns if a process, with an archive or without, may work with such a store; see `require_schema`."""
    if found.schema > SCHEMA:
        raise ConfigError(
            f"the store has schema {found.schema}, which a newer release wrote; this one knows {SCHEMA}: "
            "install the newer release here too, nothing can be taken back"
        )
    if found.schema < SCHEMA:
        what = "; ".join(step.does for step in pending(found.schema))
        raise ConfigError(
            f"the store has {'schema ' + str(found.schema) if found.schema else 'no schema yet'}, this release needs "
            f"{SCHEMA}: stop what else uses it, then run `celery -A … a2a migrate` once. It {what}"
        )
    if found.archives and archive is False:
        raise ConfigError(
            "a2a_archive_url is not set, and the store's ended tasks go to an archive: set A2A_ARCHIVE_URL here too, "
            "as in the other processes; or give the archive up with `celery -A … a2a migrate --without-archive`"
        )


def pending(schema: int) -> list[Migration]:
    """The steps from `schema` to this release's."""
    return [step for step in STEPS if schema < step.to <= SCHEMA]


def migrate(store: SyncStore, keys: Keys, step: Migration, schema: int, *, dry_run: bool = False) -> int:
    """Carries out one step from `schema`, also one that is cut off half-way and begun again; gives how many were
    changed.

    Raises: StoreUnavailable: it can't be reached; so much as was done stays done.
    """
    changed, cursor = 0, "0"
    while True:
        cursor, more = store.run(page_of(keys, step, cursor, dry_run=dry_run))
        changed += more
        if cursor == "0":
            break
    if not dry_run:
        store.run(_set_schema(keys, schema, step.to))
    return changed


def page_of(keys: Keys, step: Migration, cursor: str, *, dry_run: bool) -> Operation[tuple[str, int]]:
    """A page of a step: gives the cursor of what follows, "0" for nothing, and how many were changed."""
    args: list[Argument] = [keys.prefix, cursor, PAGE, int(dry_run)]
    return Operation(script(step.script), [keys.installation], args, _page)


def _opening(keys: Keys, *, archive: bool, stamp: bool = True) -> Generator[Operation[Any], Any, Opened]:
    """One operation, for a store that has a schema. What each gives is sent back."""
    look = Operation(script("open_store"), [keys.installation], [SCHEMA, int(archive)], _found)
    found = yield look
    if found[0] != "":
        return Opened(int(found[0]), found[1])
    cursor, occupied = "0", False
    while True:
        cursor, occupied = yield Operation(script("find_keys"), [keys.installation], [keys.prefix, cursor, PAGE], _keys)
        if occupied or cursor == "0":
            break
    if not occupied and stamp:
        yield _set_schema(keys, 0, SCHEMA)
    # again: it may be another process, as new as this one, that was here first
    found = yield look
    return Opened(int(found[0] or (0 if occupied else SCHEMA)), found[1])


def _set_schema(keys: Keys, before: int, schema: int) -> Operation[int]:
    return Operation(script("set_schema"), [keys.installation], [before or "", schema], int)


def _found(answer: Sequence[bytes]) -> tuple[str, bool]:
    return answer[0].decode(), answer[1] == b"1"


def _keys(answer: Sequence[bytes]) -> tuple[str, bool]:
    return answer[0].decode(), answer[1] == b"1"


def _page(answer: Sequence[Any]) -> tuple[str, int]:
    return answer[0].decode(), int(answer[1])
