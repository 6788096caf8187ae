"""README.md and the other pages in the root folder: length, pictures, links, the test command, and the defaults in
docs/settings.md."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

from a2a_celery.settings import Settings, default_of

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
PAGES = [README, *((ROOT / name).read_text() for name in ("CONTRIBUTING.md", "SECURITY.md"))]
PICTURE = re.compile(r"!\[([^\]]*)\]\(([^)]+)\)")
SETTINGS = (ROOT / "docs" / "settings.md").read_text()


def test_every_setting_is_listed_with_its_default() -> None:
    defaults = dict(re.findall(r"^\| `([a-z_]+)` \| (.+?) \|", SETTINGS, re.MULTILINE))

    assert list(defaults) == [f.name for f in fields(Settings)]
    for name, default in defaults.items():
        if name != "store_url":  # its default depends on the app's Redis
            assert default == f"`{default_of(name)!r}`", name


def test_the_tests_command_is_what_ci_runs() -> None:
    command = next(line for line in README.splitlines() if line.endswith("/pytest"))

    assert command in (ROOT / ".ci" / "run").read_text()


def test_a_contributors_extras_keep_the_editable_installation() -> None:
    installs = re.findall(r"pip install (.*?)'\.\[", PAGES[1])

    assert len(installs) >= 6
    assert set(installs) == {"-e "}


def test_every_link_leads_somewhere() -> None:
    targets = {target for page in PAGES for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page)}

    assert {target for target in targets if not (ROOT / target).exists()} == set()
    assert "docs/running.md" in targets


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 150


def test_the_pictures_are_small_and_described() -> None:
    pictures = {path: text for text, path in PICTURE.findall(README)}

    assert sorted(pictures) == ["docs/images/architecture.svg", "docs/images/page.png"]
    for path, text in pictures.items():
        assert (ROOT / path).stat().st_size < 200_000, path
        assert len(text) > 40, path
