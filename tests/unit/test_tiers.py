"""Tier of each test: by its marker, its folder, and its cell of pool and broker."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.tiers import BROKERS, CELLS, EVERY_CELL, POOLS, assign_tiers


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
    """Return the marker of each item."""
    assign_tiers(items)
    return [item.markers[-1] for item in items]


def test_a_folder_without_fleets_is_in_the_change_tier() -> None:
    assert tiers_of(Item("store"), Item("unit", pool="gevent")) == ["change", "change"]


def test_an_acceptance_test_runs_before_a_merge_on_the_first_cell_only() -> None:
    items = [Item("acceptance", site=pool, broker=broker) for pool in POOLS for broker in BROKERS]

    assert [item.callspec.params for item in items if tiers_of(item) == ["merge"]] == [
        {"site": "prefork", "broker": "redis"}
    ]


def test_a_test_of_every_cell_runs_before_a_merge_on_each_pool_and_broker() -> None:
    items = [Item("acceptance", EVERY_CELL, site=pool, broker=broker) for pool in POOLS for broker in BROKERS]
    merge = {
        (pool, broker)
        for item in items
        if tiers_of(item) == ["merge"]
        for pool, broker in [item.callspec.params.values()]
    }

    assert merge == set(CELLS)
    assert {pool for pool, _ in merge} == set(POOLS)
    assert {broker for _, broker in merge} == set(BROKERS)


@pytest.mark.parametrize(
    ("markers", "params", "tier"),
    [
        ((), {}, "merge"),
        ((), {"broker": "rabbitmq"}, "nightly"),
        ((EVERY_CELL,), {"broker": "rabbitmq"}, "merge"),
        ((), {"pool": "threads"}, "nightly"),
        ((EVERY_CELL,), {"pool": "threads"}, "merge"),
        ((), {"agent": "echo", "count": 3}, "merge"),
        (("change",), {"pool": "threads"}, "change"),
        (("nightly",), {}, "nightly"),
    ],
)
def test_a_marker_or_a_parameter_decides(markers: tuple[str, ...], params: dict[str, object], tier: str) -> None:
    assert tiers_of(Item("acceptance", *markers, **params)) == [tier]
