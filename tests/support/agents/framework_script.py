"""Script that the models of `framework_agents` follow, in a separate module so that tests need not import all
frameworks."""

from __future__ import annotations

ROUNDS: list[list[str]] = [["a"], ["b"], ["c"], ["d", "e"], []]
"""Cities that the model looks up in each of its responses. The last response is the answer."""

STOPS = (3, 4)
"""Model calls before which the model hangs: after the third tool call, and after two parallel tool calls."""

ANSWER = "It is warm in a, b, c, d and e."
AGENTS = ("agent-framework", "adk", "strands", "pydantic-ai", "openai-agents", "llamaindex")
