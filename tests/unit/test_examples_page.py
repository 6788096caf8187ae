"""Code blocks in docs/django.md, which must be part of examples/django_shop."""

from __future__ import annotations

import re

from tests.support import ROOT

PAGE = (ROOT / "docs" / "django.md").read_text(encoding="utf-8")
SHOP = ROOT / "examples" / "django_shop"


def test_each_block_is_part_of_the_example() -> None:
    blocks = re.findall(r"^```python\n# (\S+)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)

    assert len(blocks) == PAGE.count("```python\n") == 6
    for name, code in blocks:
        source = (SHOP / name).read_text(encoding="utf-8")
        for paragraph in code.split("\n\n\n"):
            lines = set(source.splitlines())
            assert [line for line in paragraph.splitlines() if line not in lines] == [], name
