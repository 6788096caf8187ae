"""Rows and bullets of the pages that promise something, with their ids."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from tests.support import ROOT

PAGES_WITH_BULLETS = ("guarantees",)
"""Pages whose bullets are promises, in addition to the rows of their tables."""
PAGES_WITH_TABLES = ("authentication", "durable-work", "limits", "retention", "webhooks")
WORDS = 9
"""Words of a row's first cell or of a bullet that form the last part of its id."""


def promises() -> list[str]:
    """Return the id of each row and bullet of all pages, in the order of the pages."""
    return [promise for page in (*PAGES_WITH_BULLETS, *PAGES_WITH_TABLES) for promise in promises_of_page(page)]


def promises_of_page(page: str) -> Iterator[str]:
    """Yield the id of each row and bullet of docs/<page>.md. The second of two equal ids ends in ``-2``."""
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    uses: Counter[str] = Counter()
    for section, statement in statements(text, with_bullets=page in PAGES_WITH_BULLETS):
        promise = f"{page}/{slug(section)}/{slug(statement)}"
        uses[promise] += 1
        yield promise if uses[promise] == 1 else f"{promise}-{uses[promise]}"


def statements(text: str, *, with_bullets: bool) -> Iterator[tuple[str, str]]:
    """Yield the heading above each table row and bullet of a Markdown text, with the row's first cell or the bullet."""
    section, in_code, in_table = "", False, False
    lines = text.splitlines()
    for number, line in enumerate(lines):
        in_code ^= line.startswith("```")
        if in_code:
            continue
        if line.startswith("#"):
            section = line.lstrip("# ")
        elif re.fullmatch(r"\|[ :|-]+\|", line):
            in_table = True
        elif line.startswith("|") and in_table:
            yield section, line.split("|")[1]
        elif line.startswith("- ") and with_bullets:
            yield section, " ".join([line[2:], *lines[number + 1 : number + 2]])
        in_table &= line.startswith("|")


def slug(text: str) -> str:
    """Return the first words of a text, in lower case and without Markdown, joined by hyphens."""
    words = re.findall(r"[a-z0-9_]+", re.sub(r"\]\([^)]*\)", "]", text).lower())
    return "-".join(words[:WORDS])
