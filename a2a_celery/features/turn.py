"""Features in workers: the methods of `Turn` that belong to features."""

from __future__ import annotations

from .questions.turn import BlockingQuestionMethods, QuestionMethods
from .sessions.turn import BlockingSessionMethods, SessionMethods


class TurnMethods(QuestionMethods, SessionMethods):
    """Methods of `Turn` that belong to features."""


class BlockingTurnMethods(BlockingQuestionMethods, BlockingSessionMethods):
    """Methods of `BlockingTurn` that belong to features."""
