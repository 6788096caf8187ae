"""Execution steps of frameworks that report a call by a callback before it and one after it."""

from __future__ import annotations

from collections.abc import Hashable

from ..execution.events.steps import Execution, OpenStep, current_execution
from ..lifecycle.execution import ENDS


class OpenSteps:
    """Steps that have begun and not ended, by a key of the framework. The methods have no effect outside of a run."""

    def __init__(self) -> None:
        self._open: dict[Hashable, tuple[Execution, OpenStep]] = {}

    def model_call(self, key: Hashable, model: str = "") -> None:
        """Begin a model call; see `Turn.model_call`."""
        execution = current_execution()
        if execution is not None:
            self._begin(key, execution, execution.model_call(model))

    def tool_call(self, key: Hashable, name: str) -> None:
        """Begin a tool call; see `Turn.tool_call`."""
        execution = current_execution()
        if execution is not None:
            self._begin(key, execution, execution.tool_call(name))

    def end(self, key: Hashable) -> None:
        """End the step with `key`, if it is open."""
        if key in self._open:
            _, step = self._open.pop(key)
            step.__exit__(None, None, None)

    def _begin(self, key: Hashable, execution: Execution, step: OpenStep) -> None:
        over = [one for one, (of, _) in self._open.items() if of.state in ENDS]
        for one in (key, *over):
            self.end(one)  # a cancelled agent reports no end
        self._open[key] = execution, step
        step.__enter__()
