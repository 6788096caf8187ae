"""The README equals the code: its settings, commands and paths."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

from a2a_celery.settings import Settings, default_of

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
SETTINGS = (ROOT / "docs" / "settings.md").read_text()


def test_every_setting_is_listed_with_its_default() -> None:
    defaults = dict(re.findall(r"^\| `([a-z_]+)` \| (.+?) \|", SETTINGS, re.MULTILINE))

    assert list(defaults) == [f.name for f in fields(Settings)]
    for name, shown in defaults.items():
        if name != "store_url":  # its default depends on the app's Redis
            assert shown == f"`{default_of(name)!r}`", name


def test_the_tests_command_is_what_ci_runs() -> None:
    command = next(line for line in README.splitlines() if line.endswith("/pytest"))

    assert command in (ROOT / ".ci" / "run").read_text()


def test_every_link_leads_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", README):
        assert (ROOT / target).exists(), target
