"""Table of framework features in docs/frameworks/index.md. A test verifies each entry."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

from tests.support import ROOT

PAGE = (ROOT / "docs" / "frameworks" / "index.md").read_text(encoding="utf-8")

FLEET, CREWAI = "tests/acceptance/test_frameworks.py", "tests/crewai/test_fleet.py"
CALLS = "tests/acceptance/test_framework_calls.py::test_calls_on_workers_that_are_killed"
CONTINUES = "tests/acceptance/test_framework_steps.py::test_an_agent_continues_after_its_last_step_on_another_worker"
ASKING = "tests/frameworks/test_asking.py::test_a_question_of_a_tool_is_answered"
ACTIVITIES = "tests/frameworks/test_activities.py::test_each_call_of_a_model_and_a_tool_is_an_activity"
TOKENS = "tests/frameworks/test_usage.py::test_the_tokens_of_all_runs_of_a_turn"
SPANS = "tests/frameworks/test_spans.py::test_a_model_sees_the_trace_of_the_run"
FITS = f"{FLEET}::test_an_answer_that_does_not_fit_the_schema_is_refused"
ANSWERED = "::test_what_was_asked_on_a_worker_that_died_is_answered_on_another"
CANCELS = "::test_a_cancel_stops_it_and_the_conversation_goes_on_without_that_turn"
BINDINGS = "::test_a_question_is_answered_over_each_binding"
CHUNKS = f"{FLEET}::test_text_is_streamed"
LANGGRAPH, LLAMAINDEX = "tests/frameworks/test_langgraph", "tests/frameworks/test_llamaindex"
STOPS, IN_CREWAI = "tests/frameworks/test_stop_reasons.py", "tests/crewai/test_crewai.py"

FRAMEWORKS = (
    *("google-adk", "agent-framework", "strands", "pydantic-ai"),
    *("OpenAI Agents", "LangGraph", "LlamaIndex", "CrewAI"),
)

TESTS: dict[str, tuple[str, ...]] = {
    "A conversation, its questions and their answers on any worker": (*[FLEET + ANSWERED] * 7, CREWAI + ANSWERED),
    "A question over JSON-RPC, HTTP+JSON and gRPC": (*[FLEET + BINDINGS] * 7, CREWAI + BINDINGS),
    "Text in chunks": (*[CHUNKS] * 7, f"{IN_CREWAI}::test_the_text_of_a_task_is_streamed"),
    "A schema of the answer": (
        *("", "", "", FITS, FITS),
        *(f"{LANGGRAPH}_questions.py::test_a_schema_reaches_the_client", FITS),
        f"{IN_CREWAI}::test_inputs_that_are_missing_are_asked_for",
    ),
    "`turn.ask` in a tool or step": (
        *[ASKING] * 5,
        *(f"{LANGGRAPH}_questions.py::test_nodes_may_ask_with_the_turn", ASKING, CREWAI + ANSWERED),
    ),
    "CancelTask stops the agent": (
        *[FLEET + CANCELS] * 7,
        f"{IN_CREWAI}::test_a_cancel_stops_a_model_between_two_chunks",
    ),
    "Model and tool calls as [steps](../execution.md)": (
        *[ACTIVITIES] * 5,
        f"{LANGGRAPH}_turns.py::test_calls_of_models_and_tools_are_steps_and_end_with_their_errors",
        f"{LLAMAINDEX}.py::test_the_end_has_the_tokens_and_the_steps_of_the_run",
        f"{IN_CREWAI}::test_calls_are_steps_of_the_execution",
    ),
    "Work that is not repeated after a worker is lost": (
        *[CALLS] * 5,
        *[CONTINUES] * 2,
        f"{CREWAI}::test_calls_on_workers_that_are_killed",
    ),
    "Stop reasons and `fail_on`": (
        f"{STOPS}::test_an_adk_agent_that_stops_early_has_the_reason",
        f"{STOPS}::test_an_agent_framework_agent_that_stops_early_has_the_reason",
        f"{STOPS}::test_a_strands_agent_that_stops_early_fails_with_the_option",
        f"{STOPS}::test_a_pydantic_ai_agent_that_stops_early_has_the_reason",
        "tests/frameworks/test_guardrails.py::test_the_author_chooses_the_state_and_the_text",
        f"{LANGGRAPH}_turns.py::test_a_model_that_stops_early_has_the_reason",
        f"{LLAMAINDEX}.py::test_a_model_that_stops_early_has_the_reason",
        f"{IN_CREWAI}::test_a_model_that_stopped_early_is_reported",
    ),
    "Tokens in the metadata of the task": (
        *[TOKENS] * 6,
        f"{LLAMAINDEX}.py::test_the_end_has_the_tokens_and_the_steps_of_the_run",
        f"{IN_CREWAI}::test_the_tokens_of_a_turn_are_in_its_metadata",
    ),
    "Spans of the agent as children of the run's span": (
        *[SPANS] * 3,
        "tests/frameworks/test_pydantic_ai.py::test_spans_of_the_agent_are_children_of_the_current_span",
        "tests/frameworks/test_openai_agents.py::test_tools_see_the_current_span",
        f"{LANGGRAPH}_turns.py::test_a_span_of_a_node_is_below_the_span_of_the_run",
        f"{LLAMAINDEX}.py::test_a_span_of_a_step_is_below_the_span_of_the_run",
        f"{IN_CREWAI}::test_tools_see_the_current_span",
    ),
}
"""Test of each framework by feature, or "" if the framework lacks the feature."""


def table_rows() -> list[list[str]]:
    """Return the rows of the table, starting with the header."""
    section = PAGE.partition("## Features by framework\n")[2]
    lines = re.findall(r"^\| (.*) \|$", section, re.MULTILINE)
    return [line.split(" | ") for line in lines if not line.startswith("---")]


@cache
def names_in(path: str) -> set[str]:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_the_table_has_each_feature_and_framework() -> None:
    header, *features = table_rows()

    assert tuple(header[1:]) == FRAMEWORKS
    assert [entries[0] for entries in features] == list(TESTS)


@pytest.mark.parametrize("feature", TESTS)
def test_each_entry_has_a_test(feature: str) -> None:
    [entries] = [entries[1:] for entries in table_rows() if entries[0] == feature]

    for framework, entry, test in zip(FRAMEWORKS, entries, TESTS[feature], strict=True):
        assert (entry == "no") == (not test), framework
        if test:
            path, _, name = test.partition("::")
            assert name in names_in(path), test
