"""Execution steps of a task. Commands that write events also write steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from a2a.types import TaskState

from ...lifecycle.steps import Step, decode_step
from ..codec import state_of
from ..keys import Keys
from ..operation import Operation, script


@dataclass(frozen=True, slots=True)
class Steps:
    """Newest steps of a task, oldest first.

    Attributes:
        run: number of the newest run. While it is `running`, its steps are incomplete.
        now_us: time of the store at which the steps were read.
    """

    steps: list[Step]
    agent: str
    context_id: str
    state: TaskState
    run: int
    running: bool
    now_us: int = field(compare=False)


def read_steps(keys: Keys, task_id: str) -> Operation[Steps | None]:
    """Read the steps of a task of any owner, or None if the task does not exist."""

    def parse(reply: Sequence[Any]) -> Steps | None:
        if not reply:
            return None
        now_us, agent, context_id, state, run, phase, steps = reply
        return Steps(
            [decode_step(step) for step in steps],
            agent.decode(),
            context_id.decode(),
            state_of(state),
            int(run),
            phase == b"running",
            int(now_us),
        )

    return Operation(script("read_steps"), keys.task(task_id), [], parse)
