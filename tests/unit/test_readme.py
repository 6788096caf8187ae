"""README.md and the other pages in the root folder: length, pictures, links, the test command, and the defaults in
docs/settings.md."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from xml.etree import ElementTree

from a2a_celery.settings import Settings, default_of
from benchmarks.pages import recorded

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

    assert sorted(pictures) == ["docs/images/page.png", "docs/images/tour.svg"]
    for path, text in pictures.items():
        assert (ROOT / path).stat().st_size < 200_000, path
        assert len(text) > 40, path


def test_the_sentences_on_speed_have_the_recorded_figures() -> None:
    results = {result.name: result for result in recorded().results}
    [paragraph] = re.findall(r"^Each of 5,000 agents.*?\n\n", README, re.MULTILINE | re.DOTALL)

    figures = re.findall(r"[\d.]+ (?:KiB|ms)", " ".join(paragraph.split()))

    own = [
        f"{results[name].median():.3g} {results[name].unit}"
        for name in ("waiting-memory", "waiting-echo", "echo-alone")
    ]
    assert figures == [*own, f"{results['echo-alone'].median('sdk'):.3g} ms"]
    assert results["waiting-memory"].what == "memory of each of 5,000 agents that wait in one worker process (asyncio)"


def test_the_comparison_with_plain_celery_has_the_recorded_figures() -> None:
    [result] = [result for result in recorded().results if result.name == "bare-celery"]
    [row] = re.findall(r"^\| echoes a second \|.*", (ROOT / "docs" / "comparison.md").read_text(), re.MULTILINE)

    assert re.findall(r"\d+", row) == [f"{result.median('celery'):.3g}", f"{result.median():.3g}"]


def test_the_moving_picture_needs_nothing_else_and_can_stand_still() -> None:
    text = (ROOT / "docs" / "images" / "tour.svg").read_text()
    root = ElementTree.fromstring(text)

    assert len(text) < 60_000
    assert {element.tag.partition("}")[2] for element in root.iter()} <= {
        "svg", "title", "desc", "style", "rect", "circle", "text",
    }  # fmt: skip
    assert "url(" not in text
    assert "@import" not in text
    assert "href" not in text
    assert "@media (prefers-reduced-motion:reduce){text{animation:none!important}}" in text
    height, lowest = float(root.attrib["viewBox"].split()[3]), max(float(e.get("y", 0)) for e in root.iter())
    assert lowest < height
