"""App of `agents` with the additional agent "states", for fleets."""

from __future__ import annotations

from tests.support.agents.basic import a2a, app, card

__all__ = ["app"]

a2a.add_agent(card("states"), "tests.support.agents.states:States")
