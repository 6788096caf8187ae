"""Features in workers: the methods of `Turn` that belong to features."""

from __future__ import annotations

from .questions.turn import BlockingQuestionMethods, QuestionMethods
from .steps.turn import BlockingStepMethods, StepMethods


class TurnMethods(QuestionMethods, StepMethods):
    """Methods of `Turn` that belong to features."""


class BlockingTurnMethods(BlockingQuestionMethods, BlockingStepMethods):
    """Methods of `BlockingTurn` that belong to features."""
