"""The app of `agents` with the executor of `states`, for fleets. Importing this module adds the agent to the app."""

from __future__ import annotations

from .agents import a2a, app, card

__all__ = ["app"]

a2a.add_agent(card("states"), "tests.support.states:States")
