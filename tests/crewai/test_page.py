"""Code of the section "CrewAI" in docs/frameworks.md, which must run unchanged."""

from __future__ import annotations

import re
from importlib.metadata import version
from typing import Any

from celery import Celery

from a2a_celery import A2A
from a2a_celery.frameworks import crewai
from tests.support import ROOT

from .script import script

PAGE = (ROOT / "docs" / "frameworks.md").read_text(encoding="utf-8")
SECTION = PAGE.partition("## CrewAI\n")[2].partition("\n## ")[0]


def test_the_code_runs() -> None:
    module, line = re.findall(r"```python\n(.*?)```", SECTION, re.DOTALL)
    namespace: dict[str, Any] = {"model": script("x"), "__name__": "acme.clerk"}
    a2a = A2A(Celery("acme", set_as_current=False))

    exec(compile(module, "frameworks.md", "exec"), namespace)
    exec(compile(line, "frameworks.md", "exec"), {"a2a": a2a})

    assert a2a.agents["clerk"].session
    assert namespace["make_crew"](None).agents[0].role == "clerk"


def test_names_and_numbers_are_those_of_the_code() -> None:
    assert f"The last {crewai.HISTORY} of these entries (option `history`)" in SECTION
    for name in (crewai.CHAT_MESSAGES, *filter(None, crewai.ACCEPTED)):
        assert name in SECTION
    assert f"crewai {version('crewai')} |" in PAGE
