"""Agents of other frameworks, those that are installed. By name: a gateway has to import none of them.

Each books things ("book a table"), and asks before; "wait" makes it think until it is cancelled.
"""

from importlib.util import find_spec

from a2a.types import AgentCapabilities, AgentCard, AgentSkill

from .app import a2a

if find_spec("strands"):
    a2a.agent("strands", description="A clerk of strands-agents: books, and asks before.", session=True)(
        f"{__package__}.with_strands:clerk"
    )

if find_spec("agent_framework"):
    a2a.agent("agent-framework", description="A clerk of agent-framework: books, and asks before.", session=True)(
        f"{__package__}.with_agent_framework:clerk"
    )

if find_spec("google.adk"):
    a2a.add_agent(
        AgentCard(
            name="adk",
            description="A clerk of google-adk: books, and asks before.",
            version="1.0.0",
            capabilities=AgentCapabilities(streaming=True),
            default_input_modes=["text/plain", "application/json"],
            default_output_modes=["text/plain"],
            skills=[AgentSkill(id="book", name="book", description="Books things.", tags=["sample"])],
        ),
        executor=f"{__package__}.with_adk:executor",
        session=True,
        one_run_per_context=True,  # ADK is not made for two runs that share a session
    )
