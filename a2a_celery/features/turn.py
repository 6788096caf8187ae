"""Features in workers: the methods of `Turn` that belong to features."""

from __future__ import annotations

from .families.turn import BlockingCallMethods, CallMethods
from .questions.turn import BlockingQuestionMethods, QuestionMethods
from .retries.turn import BlockingRetryMethods, RetryMethods
from .sessions.turn import BlockingSessionMethods, SessionMethods
from .steering.turn import BlockingSteeringMethods, SteeringMethods
from .steps.turn import BlockingStepMethods, StepMethods
from .waits.turn import BlockingWaitMethods, WaitMethods


class TurnMethods(
    CallMethods, QuestionMethods, RetryMethods, SessionMethods, SteeringMethods, StepMethods, WaitMethods
):
    """Methods of `Turn` that belong to features."""


class BlockingTurnMethods(
    BlockingCallMethods,
    BlockingQuestionMethods,
    BlockingRetryMethods,
    BlockingSessionMethods,
    BlockingSteeringMethods,
    BlockingStepMethods,
    BlockingWaitMethods,
):
    """Methods of `BlockingTurn` that belong to features."""
