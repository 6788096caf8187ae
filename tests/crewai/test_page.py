"""Example of docs/frameworks/crewai.md, which must run unchanged."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest

from a2a_celery.frameworks import crewai
from tests.support.framework_pages import FOLDER, book_a_table, imported_example

PAGE = (FOLDER / "crewai.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("spell", [str, str.capitalize])
async def test_the_example_asks_and_books(tmp_path: Path, spell: Callable[[str], str]) -> None:
    with imported_example("crewai", tmp_path) as a2a:
        results = await book_a_table("crewai", a2a, spell)

    assert results == [
        ("COMPLETED", "You said: hello."),
        ("INPUT_REQUIRED", "Book a table?"),
        ("COMPLETED", "Done: a table is booked."),
    ]


def test_names_and_numbers_are_those_of_the_code() -> None:
    assert f"The last {crewai.HISTORY} of these entries (option `history`)" in PAGE
    for name in (crewai.CHAT_MESSAGES, *filter(None, crewai.ACCEPTED)):
        assert name in PAGE
    assert f"crewai {version('crewai')} |" in (FOLDER / "index.md").read_text(encoding="utf-8")
