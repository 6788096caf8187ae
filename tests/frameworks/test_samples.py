"""Samples of agent frameworks. Samples whose framework is installed work, and a process that runs no agents imports no
framework."""

from __future__ import annotations

import json
import os
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.processes.fork_server import start
from tests.support.waiting import LIMIT

FRAMEWORKS = {
    "strands": "strands",
    "agent-framework": "agent_framework",
    "adk": "google.adk",
    "pydantic-ai": "pydantic_ai",
    "openai-agents": "agents",
    "langgraph": "langgraph",
    "llamaindex": "llama_index",
    "crewai": "crewai",
}

INSTALLED = [module for module in FRAMEWORKS.values() if find_spec(module)]
"""Samples whose framework is installed. CrewAI has a separate environment: see `make crewai`."""


@pytest.mark.parametrize("missing", [["strands"], list(FRAMEWORKS.values())], ids=len)
def test_a_gateway_serves_what_is_installed_and_imports_none_of_it(tmp_path: Path, missing: list[str]) -> None:
    command = [sys.executable, "-m", "tests.support.hidden_frameworks", *missing]
    env = {**os.environ, "A2A_STORE_URL": "redis://127.0.0.1:6379/0"}
    output, errors = tmp_path / "output", tmp_path / "errors"
    with output.open("wb") as output_file, errors.open("wb") as errors_file:
        code = start(command, env, output_file, errors_file).wait(4 * LIMIT)

    assert code == 0, errors.read_text()
    agents, modules = json.loads(output.read_text())
    assert set(agents) & set(FRAMEWORKS) == {
        name for name, module in FRAMEWORKS.items() if module in INSTALLED and module not in missing
    }
    assert {"echo", "booking", "words"} <= set(agents)
    assert not set(FRAMEWORKS.values()) & set(modules)
