"""Fixture that releases the syntax trees after the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .source import parse


@pytest.fixture(scope="package", autouse=True)
def release_trees() -> Iterator[None]:
    """Release the syntax trees, because their million objects would slow each later garbage collection."""
    yield
    parse.cache_clear()
