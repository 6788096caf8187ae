"""Agents of the installed agent frameworks, added by name so that the gateway imports none of the frameworks.

Each agent books things ("book a table") and asks first. After the message "wait", the agent works until it is
cancelled.
"""

from importlib.util import find_spec

from a2a.types import AgentCapabilities, AgentCard, AgentSkill

from .app import a2a

if find_spec("strands"):
    a2a.agent("strands", description="Books things with strands-agents, and asks first.", session=True)(
        f"{__package__}.with_strands:clerk"
    )

if find_spec("agent_framework"):
    a2a.agent("agent-framework", description="Books things with agent-framework, and asks first.", session=True)(
        f"{__package__}.with_agent_framework:clerk"
    )

if find_spec("pydantic_ai"):
    a2a.agent("pydantic-ai", description="Books things with pydantic-ai, and asks first.", session=True)(
        f"{__package__}.with_pydantic_ai:clerk"
    )

if find_spec("agents"):
    a2a.agent("openai-agents", description="Books things with the OpenAI Agents SDK, and asks first.", session=True)(
        f"{__package__}.with_openai_agents:clerk"
    )

if find_spec("langgraph"):
    a2a.agent("langgraph", description="Books things with LangGraph, and asks first.", session=True)(
        f"{__package__}.with_langgraph:clerk"
    )

if find_spec("llama_index"):
    a2a.agent("llamaindex", description="Books things with LlamaIndex, and asks first.", session=True)(
        f"{__package__}.with_llamaindex:clerk"
    )

if find_spec("crewai"):
    a2a.agent("crewai", description="Books things with CrewAI, and asks first.", session=True)(
        f"{__package__}.with_crewai:clerk"
    )

if find_spec("google.adk"):
    a2a.add_agent(
        AgentCard(
            name="adk",
            description="Books things with google-adk, and asks first.",
            version="1.0.0",
            capabilities=AgentCapabilities(streaming=True),
            default_input_modes=["text/plain", "application/json"],
            default_output_modes=["text/plain"],
            skills=[AgentSkill(id="book", name="book", description="Books things.", tags=["sample"])],
        ),
        executor=f"{__package__}.with_adk:executor",
        session=True,
        one_run_per_context=True,  # ADK does not support concurrent runs that share a session
    )
