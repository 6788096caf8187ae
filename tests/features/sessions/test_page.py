"""Numbers and names in docs/sessions.md, which must equal those of the code."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

from a2a_celery import ContextSession, SessionConflict, SessionError, Turn, current_session
from a2a_celery.agents import OWN_OPTIONS
from a2a_celery.execution.agents.blocking_turn import BlockingTurn
from a2a_celery.features import FEATURE_OPTIONS
from a2a_celery.features.sessions.session import HISTORY_MESSAGES, HISTORY_TASKS, MAX_STATE_BYTES

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "sessions.md").read_text(encoding="utf-8")
TEXT = " ".join(PAGE.split())
ATTRIBUTES = {"state", "version", "resumed"}
"""Attributes of a session in addition to its methods."""


def test_its_numbers_are_the_codes() -> None:
    assert f"at most 1 MiB ({MAX_STATE_BYTES} bytes)" in TEXT
    assert f"history(limit={HISTORY_MESSAGES}, artifacts=True)" in TEXT
    assert f"goes back up to {HISTORY_TASKS} tasks" in TEXT
    assert inspect.signature(ContextSession.history).parameters["limit"].default == HISTORY_MESSAGES


def test_its_names_are_there() -> None:
    for name in re.findall(r"turn\.session\.(\w+)", PAGE):
        assert name in ATTRIBUTES or hasattr(ContextSession, name), name
    for owner, pattern in ((Turn, r"(?<!\.)turn\.(?!session\.|blocking\.)(\w+)"), (BlockingTurn, r"blocking\.(\w+)")):
        names = re.findall(pattern, PAGE)
        assert names
        assert all(hasattr(owner, name) for name in names), names
    for thing in (SessionError, SessionConflict, current_session):
        assert f"{thing.__name__}" in PAGE
    assert "session" in FEATURE_OPTIONS
    assert "one_run_per_context" in OWN_OPTIONS


def test_its_example_is_python() -> None:
    [example] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)

    [agent] = ast.parse(example).body
    assert isinstance(agent, ast.AsyncFunctionDef)


def test_every_link_leads_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", PAGE):
        assert (ROOT / "docs" / target).exists(), target
