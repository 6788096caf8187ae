"""Names in docs/telemetry.md, which must be exactly the names in use."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from a2a_celery.execution.events.run_telemetry import DROPPED
from a2a_celery.features.webhooks.instrumented_post import OUTCOMES as POSTED
from a2a_celery.gateway.metrics import LOST
from a2a_celery.lifecycle.outcomes import OUTCOMES
from a2a_celery.store.client.connection import SHOWN
from a2a_celery.telemetry import names
from a2a_celery.telemetry.names import METRICS, Action, Attribute, SpanEvent, SpanName

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "telemetry.md").read_text(encoding="utf-8")
SOURCE = {p: p.read_text(encoding="utf-8") for p in (ROOT / "a2a_celery").rglob("*.py") if p.name != "names.py"}


def table(head: str) -> list[list[str]]:
    """Return the rows of all tables whose first column has the heading `head`."""
    matches = re.findall(rf"^\| {head} \|.*\n\|[- |]+\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    return [re.split(r"\s*\|\s*", row.strip("| ")) for rows in matches for row in rows.splitlines()]


def names_of(head: str) -> list[str]:
    """Return the quoted names in the first column of all tables with the heading `head`."""
    return [name for row in table(head) for name in re.findall(r"`(.+?)`", row[0])]


@pytest.mark.parametrize(
    ("head", "names"),
    [
        ("action", list(Action)),
        ("span", list(SpanName)),
        ("span event", list(SpanEvent)),
        ("attribute", list(Attribute)),
        ("metric", [metric.exposed for metric in METRICS]),
    ],
)
def test_the_page_has_these_names_and_no_other(head: str, names: list[str]) -> None:
    assert sorted(names_of(head)) == sorted(str(name) for name in names)


def test_metrics_are_in_the_section_of_their_source_with_their_labels() -> None:
    for metric in METRICS:
        section = PAGE.partition(f"| `{metric.exposed}` |")[0].rpartition("\n**In ")[2]
        assert section.startswith({"store": "the store", "gateway": "a gateway", "watcher": "a watcher"}[metric.where])
        [row] = [row for row in table("metric") if f"`{metric.exposed}`" in row[0]]
        assert tuple(re.findall(r"\w+", row[1])) == metric.labels


def test_values_are_the_codes() -> None:
    outcomes = " ".join(next(row for row in table("attribute") if "`a2a.outcome`" in row[0]))
    for value in (*OUTCOMES.values(), DROPPED, *POSTED.values()):
        assert re.search(rf"\b{value}\b", outcomes), value
    loss_row = " ".join(next(row for row in table("metric") if "`a2a_runs_lost_total`" in row[0]))
    assert all(re.search(rf"\b{outcome}\b", loss_row) for outcome in LOST)
    span_row = " ".join(next(row for row in table("span") if "`store {verb}`" in row[0]))
    assert set(re.findall(r"[a-z]+_[a-z]+", span_row)) == SHOWN


@pytest.mark.parametrize("kind", [Action, SpanName, SpanEvent, Attribute])
def test_each_name_is_used(kind: type[Action]) -> None:
    members = {member for member in kind for text in SOURCE.values() if f"{kind.__name__}.{member.name}" in text}
    spans = (ROOT / "a2a_celery" / "telemetry" / "spans.py").read_text(encoding="utf-8")

    assert {member for member in kind if member not in members and member.name not in spans} == set()


LOGGED_BY = {"execution": "worker", "features": "worker", "watcher": "watcher", "gateway": "gateway"}
"""Process that executes the modules of a folder."""
PARTS = {"operators.py": "gateway", "deliverer.py": "watcher"}
"""Folder of the process that executes a module of a feature, by the name of the module."""


def process_of(path: Path) -> str | None:
    """Return the process that executes a module, or None if several processes execute it."""
    part = PARTS.get(path.name) or path.relative_to(ROOT / "a2a_celery").parts[0]
    return LOGGED_BY.get(part)


def test_each_action_is_on_the_page_with_the_processes_that_log_it() -> None:
    processes = {row[0].strip("`"): row[1] for row in table("action")}
    missing = [
        (str(action), process)
        for path, text in SOURCE.items()
        if (process := process_of(path))
        for action in Action
        if f"Action.{action.name}," in text or f"Action.{action.name})" in text
        if process not in processes[action] and not processes[action].startswith("any process")
    ]

    assert missing == []


def test_the_page_has_each_outcome_of_a_lost_run() -> None:
    [row] = [row for row in table("action") if row[0] == f"`{Action.RUN_LOST}`"]
    recoverer = SOURCE[ROOT / "a2a_celery" / "watcher" / "recoverer.py"]
    outcomes = re.findall(r'case "(\w+)":|outcome="(\w+)"', recoverer)

    assert outcomes
    assert [outcome for pair in outcomes for outcome in pair if outcome and outcome not in row[2]] == []


def test_each_metric_is_made() -> None:
    constants = {name for name, value in vars(names).items() if value in METRICS}

    assert {name for name in constants if not any(f"names.{name}" in text for text in SOURCE.values())} == set()


def test_every_link_of_the_pages_for_operators_leads_somewhere() -> None:
    for page in ("telemetry.md", "kubernetes.md", "sizing.md"):
        text = (ROOT / "docs" / page).read_text(encoding="utf-8")
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
            assert (ROOT / "docs" / target).exists(), (page, target)
