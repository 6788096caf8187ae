"""Stored execution steps of a task."""

from __future__ import annotations

import json
from dataclasses import dataclass
from types import MappingProxyType

from .execution import ExecutionState, Transition

_to_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


@dataclass(frozen=True, slots=True)
class Step:
    """Transition in run `run` of a task, which is attempt `attempt` of its turn, in the worker process `runner`.

    Its time is by the clock of that worker.
    """

    run: int
    attempt: int
    runner: str
    transition: Transition


def encode_step(step: Step) -> bytes:
    """Return the stored form of `step`, a JSON array, because a task may have a thousand steps."""
    made = step.transition
    fields = [step.run, step.attempt, step.runner, made.number, made.before, made.after, made.at_us, dict(made.detail)]
    return _to_json(fields).encode("utf-8", "replace")


def decode_step(stored: bytes) -> Step:
    run, attempt, runner, number, before, after, at_us, detail = json.loads(stored)
    made = Transition(number, ExecutionState(before), ExecutionState(after), at_us, MappingProxyType(detail))
    return Step(run, attempt, runner, made)
