"""What is right and what isn't: checks, each a function from what was found to plain lines.

A new one is a function in a module here and a place in `CHECKS`; its name is what scripts know it by.
"""

from __future__ import annotations

from dataclasses import replace

from ..survey import Survey
from . import broker, deployment, store, workers
from .finding import Check, Finding

__all__ = ["CHECKS", "Finding", "diagnosis"]

CHECKS: tuple[Check, ...] = (
    deployment.configuration,
    store.store,
    store.memory,
    store.keeping,
    broker.broker,
    broker.timeouts,
    workers.workers,
    workers.versions,
    workers.agents,
    workers.imports,
    workers.results,
    workers.cancelling,
    workers.events,
    deployment.watchers,
    deployment.secrets,
    deployment.webhooks,
    deployment.dead_letters,
    deployment.same_settings,
    store.clocks,
    deployment.gateway,
)


def diagnosis(found: Survey) -> list[Finding]:
    """What all checks say."""
    return [replace(finding, check=check.__name__) for check in CHECKS for finding in check(found)]
