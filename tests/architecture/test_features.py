"""Features: only the folder of a feature, the list of features, tests and docs name the feature."""

from __future__ import annotations

import re

import pytest

from .source import PACKAGE, ROOT

NAMES = {
    "idempotency": r"[Ii]dempotency_?[Ww]indow|Idempotency\b(?! key)|IdempotencyKey|features\.idempotency",
    "schedules": (
        r"features\.schedules|submit_scheduled|submit_tick|tick_arguments|skipped_?[tT]icks?|TickSection|HandledTick"
        r"|Schedule(?:Task|Methods)|ScheduledMessage|schedule_(?:task|index)|scheduledAt|SCHEDULED_AT"
    ),
}
"""Pattern of the names of each feature, by its folder."""

CLIENT = "a2a_celery/client/"
"""A client describes the options of remote agents."""
MIGRATIONS = "a2a_celery/store/scripts/admin/migrate_to_"
"""A migration names the fields of older schemas."""


def test_each_feature_has_a_folder_and_names() -> None:
    folders = {path.parent.name for path in (ROOT / PACKAGE / "features").glob("*/__init__.py")}

    wiring = (ROOT / PACKAGE / "features" / "__init__.py").read_text(encoding="utf-8")

    assert folders == set(re.findall(r"^from \.(\w+) import", wiring, re.MULTILINE)) - {"feature"} == set(NAMES)


@pytest.mark.parametrize("feature", NAMES)
def test_no_other_code_names_a_feature(feature: str) -> None:
    own = (f"{PACKAGE}/features/{feature}/", f"{PACKAGE}/features/__init__.py", CLIENT, MIGRATIONS)
    files = [path for kind in ("*.py", "*.lua") for path in (ROOT / PACKAGE).rglob(kind)]
    others = {path.relative_to(ROOT).as_posix(): path for path in files}

    found = {
        name: names
        for name, path in others.items()
        if not name.startswith(own) and (names := re.findall(NAMES[feature], path.read_text(encoding="utf-8")))
    }

    assert found == {}
