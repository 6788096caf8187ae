"""Steps of a run that a framework tells of in two callbacks: one before it calls a model or a tool, one behind."""

from __future__ import annotations

from collections.abc import Hashable

from ..execution.steps import Execution, OpenStep, current_execution
from ..lifecycle.execution import ENDS


class OpenSteps:
    """The steps that have begun and not ended, by a key of the framework's. Outside of a run nothing happens."""

    def __init__(self) -> None:
        self._open: dict[Hashable, tuple[Execution, OpenStep]] = {}

    def model_call(self, key: Hashable, model: str = "") -> None:
        """The agent calls a model; see `Turn.model_call`."""
        execution = current_execution()
        if execution is not None:
            self._begin(key, execution, execution.model_call(model))

    def tool_call(self, key: Hashable, name: str) -> None:
        """The agent calls a tool; see `Turn.tool_call`."""
        execution = current_execution()
        if execution is not None:
            self._begin(key, execution, execution.tool_call(name))

    def end(self, key: Hashable) -> None:
        """The call is over, however it ended; nothing happens if none with that key is open."""
        if key in self._open:
            _, step = self._open.pop(key)
            step.__exit__(None, None, None)

    def _begin(self, key: Hashable, execution: Execution, step: OpenStep) -> None:
        over = [one for one, (of, _) in self._open.items() if of.state in ENDS]
        for one in (key, *over):
            self.end(one)  # an agent that is cancelled tells no end
        self._open[key] = execution, step
        step.__enter__()
