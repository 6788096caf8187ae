"""App with all agents that wait for a time, a signal or a child."""

from tests.support.agents import suspended_agents  # noqa: F401  adds its agents to the app
from tests.support.agents.family_agents import a2a, app  # noqa: F401
