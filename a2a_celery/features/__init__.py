"""Features of the server. Each feature is a folder, which the rest of the server calls through the lists below.

The modules of this folder are the only place outside the folder of a feature that names the feature. Processes that
only register agents import this module; the lists in the other modules need the SDK. An agent that does not use a
feature of `FEATURES` sends the store no argument for it, and runs no code of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .feature import AppFeature as AppFeature
from .feature import Feature as Feature
from .feature import TaskFilter
from .hooks import HookMethods
from .idempotency import Idempotency
from .retries import RetryPolicy
from .schedules import SCHEDULE, SCHEDULED_AT, ScheduleMethods, tasks_of_schedule
from .schedules import celery_task as schedule_task
from .sessions import Sessions
from .sessions import framework_options as framework_options

FEATURES: Sequence[type[Feature]] = (Idempotency, Sessions, RetryPolicy)
"""Features that agents use, in the order in which their sections check a message."""

FEATURE_OPTIONS = frozenset(option for feature in FEATURES for option in feature.OPTIONS)
"""Options of agents that belong to features."""

TASK_OPTIONS = RetryPolicy.OPTIONS
"""Options of features that a Celery task sets itself, so that an agent that is a Celery task cannot set them."""

CELERY_TASKS = {schedule_task.NAME: schedule_task.register_schedule_task}
"""Functions that register the Celery tasks of each app with an `A2A` object, by the names of the tasks."""

KEPT_METADATA = (SCHEDULE, SCHEDULED_AT)
"""Names of the metadata that a task keeps when it is requeued."""

TASK_FILTERS = (
    TaskFilter(
        "schedule",
        "List the tasks of this schedule and its skipped ticks, from the store, for operators.",
        tasks_of_schedule,
    ),
)
"""Filters of the operators' lists of tasks."""


class FeatureMethods(HookMethods, ScheduleMethods):
    """Methods of `A2A` that belong to features."""


def features_of(agent: str, options: Mapping[str, Any]) -> tuple[Feature, ...]:
    """Return the features that an agent uses, with its options.

    Args:
        agent: Name of the agent, for messages.
        options: All options of the agent.

    Raises:
        ConfigError: An option of a feature is invalid.
    """
    uses = (
        feature.of_agent(agent, {name: options[name] for name in feature.OPTIONS & set(options)})
        for feature in FEATURES
    )
    return tuple(use for use in uses if use is not None)
