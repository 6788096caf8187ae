"""Schema of a store: the version of its data format, which each process checks when it starts.

Releases with the same schema can run at the same time, which permits rolling updates. A process that finds a different
schema refuses to start and does not change the store. ``a2a migrate`` converts the store. An empty store receives the
schema of the first process.

All migration steps stay in the code, because a store may be years old. A step converts the keyspace in pages. An
interrupted step can be repeated, and two processes may run the same step concurrently.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any

from redis.exceptions import RedisError

from ...errors import ConfigError, StoreUnavailable
from ..client.connection import AsyncStore, SyncStore
from ..keys import Keys
from ..operation import Operation
from ..verbs import Digits, Reply, verb

SCHEMA = 6
"""Schema that this release reads and writes."""

PAGE = 1000
"""Approximate number of keys that one call reads."""


@dataclass(frozen=True, slots=True)
class Migration:
    """Step that converts a store to a newer schema.

    Attributes:
        to: Schema after the step.
        convert_page: Verb that converts one page of about `count` keys, or only counts the records to change in a dry
            run. Its result is the cursor of the next page, or "0" after the last page, and the number of records.
        does: Description of the step for operators.
    """

    to: int
    convert_page: Callable[[Keys, str, int, bool], Operation[tuple[str, int]]]
    does: str


@verb
def _migrate_to_1(keys: Keys, cursor: str, count: int, is_dry_run: bool) -> Reply[tuple[str, int]]:
    return Reply(_page)


@verb
def _migrate_to_2(keys: Keys, cursor: str, count: int, is_dry_run: bool) -> Reply[tuple[str, int]]:
    return Reply(_page)


@verb
def _migrate_to_3(keys: Keys, cursor: str, count: int, is_dry_run: bool) -> Reply[tuple[str, int]]:
    return Reply(_page)


@verb
def _migrate_to_4(keys: Keys, cursor: str, count: int, is_dry_run: bool) -> Reply[tuple[str, int]]:
    return Reply(_page)


@verb
def _migrate_to_5(keys: Keys, cursor: str, count: int, is_dry_run: bool) -> Reply[tuple[str, int]]:
    return Reply(_page)


@verb
def _migrate_to_6(keys: Keys, cursor: str, count: int, is_dry_run: bool) -> Reply[tuple[str, int]]:
    return Reply(_page)


STEPS: Sequence[Migration] = (
    Migration(
        1,
        _migrate_to_1,
        "copies the start time and the trace of each open or waiting run from its options to separate fields",
    ),
    Migration(
        2,
        _migrate_to_2,
        "counts the tasks and stored bytes of an authenticated owner across all tenants instead of in each tenant",
    ),
    Migration(3, _migrate_to_3, "records the owners, tenants and agents of all tasks"),
    Migration(
        4,
        _migrate_to_4,
        "converts the data of open questions, and the packed logs of ended tasks, which become up to a third larger",
    ),
    Migration(
        5,
        _migrate_to_5,
        "removes the names of lists and indexes from the records of tasks, and converts the data of tasks with "
        "children",
    ),
    Migration(6, _migrate_to_6, "removes messages from the stored requests, because logs also contain the messages"),
)


@dataclass(frozen=True, slots=True)
class Opened:
    """State of a store that a process opens.

    Attributes:
        schema: Schema of the store, or 0 if the store has no schema.
        archives: True if ended tasks are archived.
    """

    schema: int
    archives: bool


async def require_schema(store: AsyncStore, keys: Keys, *, archive: bool | None = None) -> None:
    """Check that this process may work with the store.

    If the store is unavailable, the check runs before the first operation of `store`, which may then raise ConfigError.

    Args:
        store: Store client.
        keys: Keys of the deployment.
        archive: True if the process has an archive, which enables archiving. False if the process has no archive, and
            must not run if ended tasks of the store are archived. None to ignore the archive.

    Raises:
        ConfigError: The store has a different schema, or its ended tasks are archived and `archive` is False. The
            message describes the remedy.
    """

    async def check() -> None:
        steps = opening_operations(keys, archive=bool(archive))
        operation = next(steps)
        while True:
            reply = await store.run_raw(operation)
            try:
                operation = steps.send(reply)
            except StopIteration as end:
                return require_compatible(end.value, archive)

    try:
        await check()
        store.first = None
    except StoreUnavailable:
        store.first = check


def open_store(store: SyncStore, keys: Keys, *, stamp: bool = True) -> Opened:
    """Read the state of the store. With `stamp`, an empty store first receives the schema of this release.

    Raises:
        StoreUnavailable: The store cannot be reached.
    """
    steps = opening_operations(keys, archive=False, stamp=stamp)
    operation = next(steps)
    while True:
        reply = store.run(operation)
        try:
            operation = steps.send(reply)
        except StopIteration as end:
            store_state: Opened = end.value
            return store_state


def require_compatible(store_state: Opened, archive: bool | None) -> None:
    """Check that a process may work with a store in `store_state`. See `require_schema` for `archive`.

    Raises:
        ConfigError: See `require_schema`.
    """
    if store_state.schema > SCHEMA:
        raise ConfigError(
            f"the store has schema {store_state.schema} of a newer release, but this release needs schema {SCHEMA}: "
            "install the newer release, because a migration cannot be undone"
        )
    if store_state.schema < SCHEMA:
        changes = "; ".join(step.does for step in pending(store_state.schema))
        schema = f"schema {store_state.schema}" if store_state.schema else "no schema yet"
        raise ConfigError(
            f"the store has {schema}, but this release needs schema {SCHEMA}: stop all other processes that use the "
            f"store, then run `celery -A … a2a migrate` once. The migration {changes}"
        )
    if store_state.archives and archive is False:
        raise ConfigError(
            "a2a_archive_url is not set, but ended tasks of the store are moved to an archive: set A2A_ARCHIVE_URL to "
            "the value of the other processes, or stop archiving with `celery -A … a2a migrate --without-archive`"
        )


def pending(schema: int) -> list[Migration]:
    """Return the migration steps from `schema` to the schema of this release."""
    return [step for step in STEPS if schema < step.to <= SCHEMA]


def migrate(
    store: SyncStore,
    keys: Keys,
    step: Migration,
    schema: int,
    *,
    dry_run: bool = False,
    on_page: Callable[[], None] = lambda: None,
    page_size: int = PAGE,
) -> int:
    """Run one migration step, or repeat an interrupted step.

    Args:
        store: Store client.
        keys: Keys of the deployment.
        step: Step to run.
        schema: Schema of the store before the step.
        dry_run: True to only count the records to change.
        on_page: Function that is called after each page.
        page_size: Approximate number of keys on a page.

    Returns:
        The number of records that were changed, or that the step would change.

    Raises:
        StoreUnavailable: The store cannot be reached. Pages that were converted stay converted.
    """
    change_count, cursor = 0, "0"
    while True:
        cursor, more = store.run(step.convert_page(keys, cursor, page_size, dry_run))
        change_count += more
        on_page()
        if cursor == "0":
            break
    if not dry_run:
        store.run(set_schema(keys, schema, step.to))
    return change_count


def count_pages(store: SyncStore) -> int:
    """Return the approximate number of pages of a migration step, or 1 if the number of keys cannot be read."""
    try:
        return int(store.redis.dbsize()) // PAGE + 1
    except RedisError:  # if the store is unavailable, the step reports the error
        return 1


@verb
def _open_store(keys: Keys, has_archive: bool) -> Reply[tuple[str, bool]]:
    return Reply(_text_and_bool)


@verb
def _find_keys(keys: Keys, cursor: str) -> Reply[tuple[str, bool]]:
    return Reply(_text_and_bool)


def opening_operations(keys: Keys, *, archive: bool, stamp: bool = True) -> Generator[Operation[Any], Any, Opened]:
    """Yield the operations that open a store, and receive their results.

    A store that has a schema is opened by one operation. An empty store is scanned, and receives a schema if `stamp`.
    """
    read_schema = _open_store(keys, archive)
    schema, archives = yield read_schema
    if schema != "":
        return Opened(int(schema), archives)
    cursor, has_keys = "0", False
    while True:
        cursor, has_keys = yield _find_keys(keys, cursor)
        if has_keys or cursor == "0":
            break
    if not has_keys and stamp:
        yield set_schema(keys, 0, SCHEMA)
    # read again: another process of this release may have written the schema first
    schema, archives = yield read_schema
    return Opened(int(schema or (0 if has_keys else SCHEMA)), archives)


@verb
def set_schema(keys: Keys, previous_schema: Digits, schema: Digits) -> Reply[int]:
    """Set the schema of the store, unless the schema is no longer `previous_schema`. 0 means a store without a
    schema."""
    return Reply(int)


def _text_and_bool(reply: Sequence[bytes]) -> tuple[str, bool]:
    return reply[0].decode(), reply[1] == b"1"


def _page(reply: Sequence[Any]) -> tuple[str, int]:
    return reply[0].decode(), int(reply[1])
