"""Tier of each test, which depends on the test's marker, its folder, and its cell of pool and broker."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support import ROOT
from tests.tiers import (
    BROKERS,
    EACH_KIND,
    EVERY_CELL,
    FIRST_CELL,
    LONG_FILES,
    MORE_CELLS,
    POOLS,
    TIERS,
    assign_tiers,
    at_night,
    may_contain,
    sort_for_loadfile,
)


class Item:
    """Stand-in for a pytest item, with the attributes that determine its tier."""

    def __init__(self, folder: str, *markers: str, **params: object) -> None:
        self.path = Path("tests", folder, "test_it.py")
        self.markers = list(markers)
        if params:
            self.callspec = SimpleNamespace(params=params)

    def get_closest_marker(self, name: str) -> bool:
        return name in self.markers

    def add_marker(self, name: str) -> None:
        self.markers.append(name)


def tiers_of(*items: Any) -> list[str]:
    """Return the tier that is assigned to each item."""
    assign_tiers(items)
    return [item.markers[-1] for item in items]


def test_a_folder_without_fleets_is_in_the_change_tier() -> None:
    assert tiers_of(Item("store"), Item("unit", pool="gevent")) == ["change", "change"]


def test_an_acceptance_test_runs_before_a_merge_on_the_first_cell_only() -> None:
    items = [Item("acceptance", site=pool, broker=broker) for pool in POOLS for broker in BROKERS]

    assert [item.callspec.params for item in items if tiers_of(item) == ["merge"]] == [
        {"site": "prefork", "broker": "redis"}
    ]


def merge_cells(marker: str) -> set[tuple[object, object]]:
    """Return the cells of pool and broker on which the merge tier runs a test with `marker`."""
    items = [Item("acceptance", marker, site=pool, broker=broker) for pool in POOLS for broker in BROKERS]
    return {
        (pool, broker)
        for item in items
        if tiers_of(item) == ["merge"]
        for pool, broker in [item.callspec.params.values()]
    }


@pytest.mark.parametrize("marker", [EVERY_CELL, EACH_KIND])
def test_a_test_of_more_cells_runs_before_a_merge_on_each_broker(marker: str) -> None:
    merge = merge_cells(marker)

    assert merge == {FIRST_CELL, *MORE_CELLS[marker]}
    assert {broker for _, broker in merge} == set(BROKERS)


def test_a_test_of_every_cell_runs_before_a_merge_on_each_pool() -> None:
    assert {pool for pool, _ in merge_cells(EVERY_CELL)} == set(POOLS)


def test_rows_of_a_parametrization_run_at_night_unless_they_are_named() -> None:
    first, second, single = at_night([("threads", "cold"), ("solo", "cold"), "solo"], merge=[("threads", "cold")])

    assert first == ("threads", "cold")
    assert (second.values, single.values) == (("solo", "cold"), ("solo",))
    assert [mark.name for row in (second, single) for mark in row.marks] == ["nightly", "nightly"]


@pytest.mark.parametrize(
    ("markers", "params", "tier"),
    [
        ((), {}, "merge"),
        ((), {"broker": "rabbitmq"}, "nightly"),
        ((EVERY_CELL,), {"broker": "rabbitmq"}, "merge"),
        ((), {"pool": "threads"}, "nightly"),
        ((EVERY_CELL,), {"pool": "threads"}, "merge"),
        ((EVERY_CELL,), {"pool": "gevent"}, "merge"),
        ((EACH_KIND,), {"pool": "threads"}, "merge"),
        ((EACH_KIND,), {"pool": "gevent"}, "nightly"),
        ((), {"agent": "echo", "count": 3}, "merge"),
        (("change",), {"pool": "threads"}, "change"),
        (("nightly",), {}, "nightly"),
    ],
)
def test_a_marker_or_a_parameter_decides(markers: tuple[str, ...], params: dict[str, object], tier: str) -> None:
    assert tiers_of(Item("acceptance", *markers, **params)) == [tier]


@pytest.mark.parametrize(
    ("folder", "text", "tiers"),
    [
        ("store", "", {"change"}),
        ("store", "@pytest.mark.merge", {"change", "merge"}),
        ("store", "at_night([1, 2], merge=[1])", {"change", "merge", "nightly"}),
        ("acceptance", "", {"merge", "nightly"}),
        ("acceptance", "pytestmark = pytest.mark.change", {"change", "merge", "nightly"}),
    ],
)
def test_a_file_is_imported_for_the_tiers_of_its_folder_and_its_markers(
    tmp_path: Path, folder: str, text: str, tiers: set[str]
) -> None:
    path = tmp_path / folder / "test_it.py"
    path.parent.mkdir()
    path.write_text(text)

    assert {tier for tier in TIERS if may_contain(path, tier)} == tiers


def test_long_files_start_first_and_then_the_files_with_the_most_tests() -> None:
    paths = [Path("tests", name) for name in ("test_a.py", "test_b.py", "test_b.py", LONG_FILES[1], LONG_FILES[0])]
    items: list[Any] = [SimpleNamespace(path=path, number=number) for number, path in enumerate(paths)]

    sort_for_loadfile(items)

    assert [item.number for item in items] == [4, 3, 1, 2, 0]


def test_each_long_file_exists() -> None:
    assert [name for name in LONG_FILES if not list((ROOT / "tests").rglob(name))] == []


def test_the_files_that_run_for_minutes_are_nightly_as_documented() -> None:
    page = (ROOT / "docs" / "testing.md").read_text()
    [row] = [line for line in page.splitlines() if "| They run for minutes" in line]
    names = re.findall(r"`(test_\w+)`", row.split(" | ")[0])
    files = {name: file for name in names for file in (ROOT / "tests").rglob(f"{name}.py")}

    assert "test_rolling_restart" in names
    assert sorted(files) == sorted(names)
    assert [name for name, file in files.items() if "pytestmark = pytest.mark.nightly" not in file.read_text()] == []
