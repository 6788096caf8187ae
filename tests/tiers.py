"""Test tiers: which tests run for a change, before a merge, and every night.

Each test belongs to exactly one tier, named by a marker:

- change: every test without a fleet of processes, and one end-to-end test for each pool and broker.
- merge: the acceptance tests on one cell of the matrix (pool × broker), on a few more cells if pool or broker matter.
- nightly: the rest of the matrix, and tests that run for minutes: chaos, soak, flood, hostile input, rolling restarts.

A marker on a test, class or module decides. Without a marker, a test in a folder of `MERGE_FOLDERS` is in the merge
tier, or in the nightly tier if the merge tier leaves out its cell. Every other test is in the change tier.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest

TIERS = {
    "change": "runs by default: `pytest`",
    "merge": "CI runs it in addition: `pytest -m merge`",
    "nightly": "`pytest -m nightly`",
}
EVERY_CELL = "every_cell"
MARKERS = [
    *(f"{tier}: tier; {meaning}" for tier, meaning in TIERS.items()),
    f"{EVERY_CELL}: the outcome depends on the pool or the broker, so the merge tier runs the test on more cells",
]

MERGE_FOLDERS = ("acceptance", "docker", "browser", "peers")
POOLS = ("prefork", "threads", "solo", "gevent", "asyncio")
BROKERS = ("redis", "rabbitmq")
FIRST_CELL = ("prefork", "redis")
"""Cell on which the merge tier runs every acceptance test."""
MORE_CELLS = (
    ("prefork", "rabbitmq"),
    ("threads", "rabbitmq"),
    ("solo", "redis"),
    ("gevent", "rabbitmq"),
    ("asyncio", "redis"),
)
"""Cells on which the merge tier runs the tests marked `every_cell`: each pool, and each broker more than once."""
CELLS = (FIRST_CELL, *MORE_CELLS)


def assign_tiers(items: Iterable[pytest.Item]) -> None:
    """Add the marker of its tier to each item that has none."""
    for item in items:
        if not any(item.get_closest_marker(tier) for tier in TIERS):
            item.add_marker(tier_of(item))


def select_change_tier(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the other tiers, unless the command line names a path or a marker expression."""
    named = config.args_source is pytest.Config.ArgsSource.ARGS
    if named or config.option.markexpr:
        return
    selected: list[pytest.Item] = []
    others: list[pytest.Item] = []
    for item in items:
        (selected if item.get_closest_marker("change") else others).append(item)
    config.hook.pytest_deselected(items=others)
    items[:] = selected


def tier_of(item: pytest.Item) -> str:
    """Return the tier of an item that has no marker of a tier."""
    if item.path.parent.name not in MERGE_FOLDERS:
        return "change"
    cell = cell_of(item)
    if _is_part(cell, FIRST_CELL):
        return "merge"
    chosen = item.get_closest_marker(EVERY_CELL) and any(_is_part(cell, other) for other in MORE_CELLS)
    return "merge" if chosen else "nightly"


def cell_of(item: pytest.Item) -> tuple[str | None, str | None]:
    """Return the pool and the broker in the parameters of `item`, each None if no parameter names it."""
    callspec = getattr(item, "callspec", None)
    values = [] if callspec is None else [value for value in callspec.params.values() if isinstance(value, str)]
    pool = next((value for value in values if value in POOLS), None)
    broker = next((value for value in values if value in BROKERS), None)
    return pool, broker


def _is_part(cell: tuple[str | None, str | None], whole: tuple[str, str]) -> bool:
    return all(value is None or value == expected for value, expected in zip(cell, whole, strict=True))
