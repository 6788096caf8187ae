"""The app of `agents`, with the executor of `states` too. For fleets: whoever imports it has one agent more."""

from __future__ import annotations

from .agents import a2a, app, card

__all__ = ["app"]

a2a.add_agent(card("states"), "tests.support.states:States")
