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
    """The newest steps of a task, oldest first. Of `run`, the newest run, they are not over while it is `running`.

    `now_us` is the store's time at which this was read.
    """

    steps: list[Step]
    agent: str
    context_id: str
    state: TaskState
    run: int
    running: bool
    now_us: int = field(compare=False)


def read_steps(keys: Keys, task_id: str) -> Operation[Steps | None]:
    """The steps of a task, whoever it belongs to; None: there is no such task."""

    def parse(reply: Sequence[Any]) -> Steps | None:
        if not reply:
            return None
        now_us, agent, context_id, state, run, phase, rows = reply
        return Steps(
            [decode_step(row) for row in rows],
            agent.decode(),
            context_id.decode(),
            state_of(state),
            int(run),
            phase == b"running",
            int(now_us),
        )

    return Operation(script("read_steps"), keys.task(task_id), [], parse)
