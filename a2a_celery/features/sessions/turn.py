"""Session of a `Turn`, and the blocking variants of its methods."""

from __future__ import annotations

from typing import Any

from a2a.types import Message

from ...errors import ConfigError
from ...execution.agents.running_agent import loop_method
from ...execution.agents.turn_members import BlockingTurnMembers, TurnMembers
from .session import HISTORY_MESSAGES, ContextSession


class SessionMethods(TurnMembers):
    """Members of `Turn` for sessions."""

    @property
    def session(self) -> ContextSession:
        """Agent's session for this context.

        Raises:
            ConfigError: The agent has no session. Register the agent with `session=True`.
        """
        session = self._run.feature(ContextSession)
        if session is None:
            raise ConfigError(f"agent {self._run.claim.scope.agent!r} has no session: give it the option session=True")
        return session

    @loop_method
    async def checkpoint(self, state: dict[str, Any] | None = None) -> None:
        """Save the session immediately, so that a run that replaces this run continues from here.

        See `ContextSession.checkpoint`.

        Args:
            state: The new state, or None for the current state of the session.

        Raises:
            SessionError: The state is not a JSON object, or is too large.
            SessionConflict: Another run of the context has saved the session since this run began.
        """
        await self.session.checkpoint(state)


class BlockingSessionMethods(BlockingTurnMembers):
    """Methods of `BlockingTurn` for sessions."""

    def checkpoint(self, state: dict[str, Any] | None = None) -> None:
        """See `Turn.checkpoint`."""
        self._wait_for(lambda: self._turn.checkpoint(state))

    def history(self, limit: int = HISTORY_MESSAGES, *, artifacts: bool = True) -> list[Message]:
        """See `ContextSession.history`."""
        return self._wait_for(lambda: self._turn.session.history(limit, artifacts=artifacts))
