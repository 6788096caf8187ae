"""Check of dead letters in ``a2a doctor``."""

from __future__ import annotations

from ...cli.doctor.findings import Findings, note
from ...cli.doctor.survey import Survey


def dead_letters(survey: Survey) -> Findings:
    """Note how many dead letters there are, and how to requeue them."""
    if count := survey.metrics.resubmittable:
        commands = "celery -A … a2a requeue lists them; a2a requeue --all runs them again"
        yield note("dead letters", f"{count} FAILED because the worker was lost: {commands}.")
