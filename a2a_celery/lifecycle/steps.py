"""Stored execution steps of a task: each transition, and the run that made it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from types import MappingProxyType

from .execution import ExecutionState, Transition

_to_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


@dataclass(frozen=True, slots=True)
class Step:
    """A transition in a task's run `run`, which is the `attempt`-th of its turn, in the worker process `runner`.

    Its time is by that worker's clock.
    """

    run: int
    attempt: int
    runner: str
    transition: Transition


def encode_step(step: Step) -> bytes:
    """The stored form of `step`: a JSON array, for a task may have a thousand of them."""
    made = step.transition
    fields = [step.run, step.attempt, step.runner, made.number, made.before, made.after, made.at_us, dict(made.detail)]
    return _to_json(fields).encode("utf-8", "replace")


def decode_step(stored: bytes) -> Step:
    """The step that `encode_step` wrote."""
    run, attempt, runner, number, before, after, at_us, detail = json.loads(stored)
    made = Transition(number, ExecutionState(before), ExecutionState(after), at_us, MappingProxyType(detail))
    return Step(run, attempt, runner, made)
