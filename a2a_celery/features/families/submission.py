"""Submission of a child task by the code of a run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ...current_run import CURRENT_RUN
from ...lifecycle.parents import name_parent
from ...submission import Submission


def submission_of(agent: str, content: Any, *, cancel_with_parent: bool = True, **options: Any) -> Submission:
    """Return the submission of a task that is a child of the current run's task, if there is a run; see
    `Submission.of`."""
    submission, run = Submission.of(agent, content, **options), CURRENT_RUN.get()
    if run is None:
        return submission
    name_parent(submission.params.message, run.task_id, cancel=cancel_with_parent)
    return submission if cancel_with_parent else replace(submission, run=None)
