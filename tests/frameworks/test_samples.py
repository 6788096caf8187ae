"""Samples of agent frameworks. Samples whose framework is installed work, and a process that runs no agents imports no
framework."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

from tests.support import ROOT
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

PROGRAM = """
import importlib.util, json, sys
missing, find_spec = sys.argv[1:], importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name in missing else find_spec(name, *more)
from workers.app import a2a, app
app.loader.import_default_modules()
a2a.asgi()
print(json.dumps([list(a2a.agents), list(sys.modules)]))
"""


@pytest.mark.parametrize("missing", [["strands"], list(FRAMEWORKS.values())], ids=len)
def test_a_gateway_serves_what_is_installed_and_imports_none_of_it(missing: list[str]) -> None:
    command = [sys.executable, "-c", PROGRAM, *missing]
    env = {**os.environ, "A2A_STORE_URL": "redis://127.0.0.1:6379/0"}
    process = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=4 * LIMIT, check=False)

    assert process.returncode == 0, process.stderr
    agents, modules = json.loads(process.stdout)
    assert set(agents) & set(FRAMEWORKS) == {
        name for name, module in FRAMEWORKS.items() if module in INSTALLED and module not in missing
    }
    assert {"echo", "booking", "words"} <= set(agents)
    assert not set(FRAMEWORKS.values()) & set(modules)
