"""Durations of the stored execution steps of a task."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ...lifecycle.execution import ENDS, Step
from .release import Steps


@dataclass(frozen=True, slots=True)
class StepDuration:
    """Step of a run, with the duration of the state that the step entered.

    Attributes:
        step: Step of the run.
        seconds: Seconds that the run spent in the state, or None for a final step or an unknown duration.
        open: True if the run is still in the state.
    """

    step: Step
    seconds: float | None
    open: bool = False


def step_durations(steps: Steps) -> Iterator[StepDuration]:
    """Yield the steps in order, each with its duration."""
    for n, step in enumerate(steps.steps):
        following = steps.steps[n + 1] if n + 1 < len(steps.steps) else None
        if step.transition.after in ENDS:
            yield StepDuration(step, None)
        elif following is not None and _is_consecutive(step, following):
            yield StepDuration(step, (following.transition.at_us - step.transition.at_us) / 1_000_000)
        elif following is None and steps.running and step.run == steps.run:
            yield StepDuration(step, max(0, steps.now_us - step.transition.at_us) / 1_000_000, open=True)
        else:
            yield StepDuration(step, None)


def _is_consecutive(step: Step, following: Step) -> bool:
    return (step.run, step.runner) == (following.run, following.runner) and (
        following.transition.number == step.transition.number + 1
    )
