"""Limits of messages to the store."""

from __future__ import annotations

from a2a_celery.features.limits.section import TaskLimits
from a2a_celery.lifecycle.references import Scope
from a2a_celery.store import Keys
from tests.support.store.seeds import AGENTS, ANN


def limit_sections(keys: Keys, scope: Scope = ANN, **limits: int) -> list[TaskLimits]:
    """Return the section of a message with limits, or no section without limits."""
    return [TaskLimits.of(keys, AGENTS, scope, **limits)] if limits else []
