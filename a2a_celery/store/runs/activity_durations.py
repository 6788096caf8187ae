"""Durations of the stored execution activities of a task."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ...lifecycle.execution import ENDS, Activity
from .release import Activities


@dataclass(frozen=True, slots=True)
class ActivityDuration:
    """Activity of a run, with the duration of the state that the activity entered.

    Attributes:
        activity: Activity of the run.
        seconds: Seconds that the run spent in the state, or None for a final activity or an unknown duration.
        open: True if the run is still in the state.
    """

    activity: Activity
    seconds: float | None
    open: bool = False


def activity_durations(activities: Activities) -> Iterator[ActivityDuration]:
    """Yield the activities in order, each with its duration."""
    for n, activity in enumerate(activities.activities):
        following = activities.activities[n + 1] if n + 1 < len(activities.activities) else None
        if activity.transition.after in ENDS:
            yield ActivityDuration(activity, None)
        elif following is not None and _is_consecutive(activity, following):
            yield ActivityDuration(activity, (following.transition.at_us - activity.transition.at_us) / 1_000_000)
        elif following is None and activities.running and activity.run == activities.run:
            yield ActivityDuration(
                activity, max(0, activities.now_us - activity.transition.at_us) / 1_000_000, open=True
            )
        else:
            yield ActivityDuration(activity, None)


def _is_consecutive(activity: Activity, following: Activity) -> bool:
    return (activity.run, activity.runner) == (following.run, following.runner) and (
        following.transition.number == activity.transition.number + 1
    )
