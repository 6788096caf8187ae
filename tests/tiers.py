"""Test tiers: the tests for a change, before a merge, and for every night.

Each test belongs to exactly one tier, named by a marker:

- change: every test without a fleet of processes, and one end-to-end test for each pool and broker.
- merge: the acceptance tests on one cell of the matrix (pool × broker), or on more cells if the pool affects the
  outcome.
- nightly: the other cells, tests that run for minutes (chaos, soak, flood, hostile input, rolling restarts), and tests
  of rare failures.

A marker on a test, class or module selects the tier. Without a marker, a test in a folder of `MERGE_FOLDERS` is in the
merge tier, or in the nightly tier if the merge tier excludes its cell. Every other test is in the change tier.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

TIERS = {
    "change": "runs by default: `pytest`",
    "merge": "CI runs it in addition: `pytest -m merge`",
    "nightly": "`pytest -m nightly`",
}
EVERY_CELL = "every_cell"
EACH_KIND = "each_kind"
MARKERS = [
    *(f"{tier}: tier; {meaning}" for tier, meaning in TIERS.items()),
    f"{EVERY_CELL}: the outcome depends on the pool: the merge tier runs the test on each pool",
    f"{EACH_KIND}: the outcome depends on the kind of the pool: the merge tier runs the test on one pool of each kind",
]

MERGE_FOLDERS = ("acceptance", "docker", "browser", "peers")
POOLS = ("prefork", "threads", "solo", "gevent", "asyncio")
BROKERS = ("redis", "rabbitmq")
FIRST_CELL = ("prefork", "redis")
"""Cell on which the merge tier runs every acceptance test."""
KINDS = (("threads", "rabbitmq"), ("asyncio", "redis"))
"""Additional cells of the tests marked `each_kind` in the merge tier. Together with `FIRST_CELL`, the cells cover child
processes, threads, coroutines and both brokers."""
MORE_CELLS = {EACH_KIND: KINDS, EVERY_CELL: (*KINDS, ("solo", "redis"), ("gevent", "rabbitmq"))}
"""Additional cells in the merge tier for each marker. Together with `FIRST_CELL`, `every_cell` covers each pool."""

LONG_FILES = (
    "test_dev.py",
    "test_frameworks.py",
    "test_dev_loop.py",
    "test_framework_calls.py",
    "test_framework_steps.py",
    "test_readme_commands.py",
    "test_testing_agents_page.py",
    "test_broker_hangs.py",
    "test_broker_restarts.py",
    "test_failover.py",
)
"""Files whose few tests take half a minute or more each, the longest first."""


def assign_tiers(items: Iterable[pytest.Item]) -> None:
    """Add the marker of a tier to each item without one."""
    for item in items:
        if not any(item.get_closest_marker(tier) for tier in TIERS):
            item.add_marker(tier_of(item))


def select_change_tier(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the other tiers unless the command line names a path or a marker expression."""
    if config.option.markexpr or selected_tier(config) is None:
        return
    selection: list[pytest.Item] = []
    others: list[pytest.Item] = []
    for item in items:
        (selection if item.get_closest_marker("change") else others).append(item)
    config.hook.pytest_deselected(items=others)
    items[:] = selection


def sort_for_loadfile(items: list[pytest.Item]) -> None:
    """Sort the files of `items` so that `LONG_FILES` come first, then the files with the most tests.

    A long file that starts last is executed while the other processes of a distribution by file are idle.
    """
    count = Counter(item.path for item in items)
    rank = {name: number for number, name in enumerate(LONG_FILES)}
    items.sort(key=lambda item: (rank.get(item.path.name, len(rank)), -count[item.path], item.path))


def may_contain(path: Path, tier: str) -> bool:
    """Return False if a file certainly contains no test of a tier and need not be imported."""
    by_default = tier in ("merge", "nightly") if path.parent.name in MERGE_FOLDERS else tier == "change"
    return by_default or re.search(rf"mark\.{tier}\b|\bat_night\b", path.read_text(encoding="utf-8")) is not None


def selected_tier(config: pytest.Config) -> str | None:
    """Return the tier that the command line selects, or None if the selection is not exactly one tier."""
    if config.option.markexpr in TIERS:
        return str(config.option.markexpr)
    has_path = config.args_source is pytest.Config.ArgsSource.ARGS
    return None if has_path or config.option.markexpr else "change"


def tier_of(item: pytest.Item) -> str:
    """Return the tier of an item without a tier marker."""
    if item.path.parent.name not in MERGE_FOLDERS:
        return "change"
    cell = cell_of(item)
    if _is_part(cell, FIRST_CELL):
        return "merge"
    cells = [other for marker, cells in MORE_CELLS.items() if item.get_closest_marker(marker) for other in cells]
    return "merge" if any(_is_part(cell, other) for other in cells) else "nightly"


def at_night(rows: Iterable[Any], *, merge: Sequence[Any]) -> list[Any]:
    """Return the rows of a parametrization, and mark the rows that are not in `merge` as nightly."""
    return [
        row if row in merge else pytest.param(*(row if isinstance(row, tuple) else (row,)), marks=pytest.mark.nightly)
        for row in rows
    ]


def cell_of(item: pytest.Item) -> tuple[str | None, str | None]:
    """Return the pool and the broker in the parameters of `item`. Each is None if no parameter names it."""
    callspec = getattr(item, "callspec", None)
    values = [] if callspec is None else [value for value in callspec.params.values() if isinstance(value, str)]
    pool = next((value for value in values if value in POOLS), None)
    broker = next((value for value in values if value in BROKERS), None)
    return pool, broker


def _is_part(cell: tuple[str | None, str | None], whole: tuple[str, str]) -> bool:
    return all(value is None or value == expected for value, expected in zip(cell, whole, strict=True))
