"""Features in workers: the methods of `Turn` that belong to features."""

from __future__ import annotations

from .questions.turn import BlockingQuestionMethods, QuestionMethods


class TurnMethods(QuestionMethods):
    """Methods of `Turn` that belong to features."""


class BlockingTurnMethods(BlockingQuestionMethods):
    """Methods of `BlockingTurn` that belong to features."""
