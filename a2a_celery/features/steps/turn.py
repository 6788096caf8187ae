"""`Turn.step`, which calls a function and records its result, and the journal of the turn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...execution.agents.running_agent import loop_method
from ...execution.agents.turn_members import BlockingTurnMembers, TurnMembers
from .durable_steps import DurableStep, StepCall
from .journal import RunJournal, current_step_key


class StepMethods(TurnMembers):
    """Methods of `Turn` for durable steps."""

    @property
    def journal(self) -> RunJournal:
        """Recorded results of the turn, which `step`, `call`, `sleep` and `wait_for` read and write."""
        return self._agent.feature(RunJournal)

    @loop_method
    async def step(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call a function and record its result, so that no later run of the turn repeats the call.

        The next run receives the recorded result if the worker is lost or shuts down, the turn is retried or requeued,
        or the client answers a question. Call the steps in the same order each time. Calls in different asyncio tasks
        may be made in any order. See ``docs/durable-work.md``.

        Args:
            name: Name of the step. Calls with the same name are distinguished by their order.
            function: Async function, or plain function, which is called in a thread. The options of `step` apply.
            *args: Positional arguments of the function.
            **kwargs: Keyword arguments of the function.

        Returns:
            The result as it was recorded: a JSON value, bytes, a pydantic model, a dataclass or a protobuf message.

        Raises:
            Exception: The function raised this exception, in this run or in an earlier run that recorded it. If an
                exception cannot be recorded, `StepFailed` is raised instead.
            StepError: The step or its result is invalid.
        """
        return await StepCall(self.journal, DurableStep.of(function), name, args, kwargs).result()

    @property
    def step_key(self) -> str:
        """Idempotency key of the step that is being executed; see `current_step_key`.

        Raises:
            RuntimeError: No step is being executed.
        """
        return current_step_key()


class BlockingStepMethods(BlockingTurnMembers):
    """Blocking variants of `StepMethods`."""

    def step(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """See `Turn.step`. A plain function is called in the current thread."""
        return StepCall(self._turn.journal, DurableStep.of(function), name, args, kwargs).result_blocking()

    @property
    def step_key(self) -> str:
        """See `Turn.step_key`."""
        return current_step_key()
