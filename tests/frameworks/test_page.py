"""Code and versions in docs/frameworks.md. The code runs unchanged, and the versions match those of the extras."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import pytest
from a2a.server.agent_execution import AgentExecutor
from celery import Celery
from llama_index.core.llms.mock import MockFunctionCallingLLM

from a2a_celery import A2A
from a2a_celery.frameworks import conversation
from tests.support import ROOT
from tests.support.agents import card

PAGE = (ROOT / "docs" / "frameworks.md").read_text(encoding="utf-8")
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]

SECTIONS = [
    "google-adk",
    "Microsoft agent-framework",
    "strands-agents",
    "pydantic-ai",
    "OpenAI Agents SDK",
    "LangGraph",
    "LlamaIndex",
]
FRAMEWORKS = ("adk", "agent-framework", "strands", "pydantic-ai", "openai-agents", "langgraph", "llamaindex", "crewai")


"""Extras of the table. tests/crewai runs the code of the section "CrewAI"."""


def code_blocks(section: str) -> list[str]:
    """Return the Python code blocks of a section: the agent's module, and the line that adds the agent to the app."""
    text = PAGE.partition(f"## {section}\n")[2].partition("\n## ")[0]
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


@pytest.mark.parametrize("section", SECTIONS)
def test_the_code_runs(section: str) -> None:
    module, line = code_blocks(section)
    model = MockFunctionCallingLLM() if section == "LlamaIndex" else "test"
    namespace: dict[str, Any] = {"book": print, "client": None, "model": model, "__name__": "acme.clerk"}
    a2a = A2A(Celery("acme", set_as_current=False))

    exec(compile(module, "frameworks.md", "exec"), namespace)
    exec(compile(line, "frameworks.md", "exec"), {"a2a": a2a, "card": card("clerk")})

    agent = a2a.agents["clerk"]
    code = namespace[agent.code.rpartition(":")[2]]
    assert agent.code.startswith("acme.clerk:")
    assert agent.session
    assert isinstance(code(), AgentExecutor) if agent.kind == "executor" else callable(code)


def test_each_version_is_the_oldest_that_its_extra_takes() -> None:
    versions = dict(re.findall(r"`a2a-celery\[(.*?)\]` \|.*\| [a-z-]+ ([0-9.]+) \|$", PAGE, re.MULTILINE))

    assert set(versions) == set(FRAMEWORKS)
    for extra, version in versions.items():
        oldest = EXTRAS[extra][0].partition(">=")[2].partition(",")[0]
        assert oldest in (version, version.rpartition(".")[0])


def test_so_many_tasks_may_wait() -> None:
    assert f"Up to {conversation.MAX_PAUSED} tasks" in " ".join(PAGE.split())
