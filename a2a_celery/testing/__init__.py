"""Test kit for agents: `AgentTester` runs an agent in the process of a test, and `AgentFleet` runs agents in real
processes.

Both need the extra ``testing``. See docs/testing-agents.md.
"""

from .clock import SimulatedClock
from .fleet import AgentFleet, FleetError
from .tester import AgentTester

__all__ = ["AgentFleet", "AgentTester", "FleetError", "SimulatedClock"]
