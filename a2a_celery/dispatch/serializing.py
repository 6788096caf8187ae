"""Check that workers accept the serializer that their app publishes with; else they drop each run silently."""

from __future__ import annotations

from collections.abc import Iterable

from celery import Celery
from kombu.serialization import registry

from ..agents import Agent
from ..errors import ConfigError


def require_readable(app: Celery, agents: Iterable[Agent]) -> None:
    """Returns if `app`'s workers accept what the runs of `agents` are written with.

    Raises:
        ConfigError: they don't, or no such serializer is installed; says whose, and what to change.
    """
    _require(app, app.conf.task_serializer, "task_serializer")
    for agent in agents:
        if agent.kind == "task":  # Celery gives a task its app's serializer once, when it is first looked at
            written = agent.code.serializer or app.conf.task_serializer
            _require(app, written, f"the serializer of task {agent.code.name}, which is a2a.expose'd,")


def _require(app: Celery, serializer: str, whose: str) -> None:
    types: dict[str, str] = registry.name_to_type
    if serializer not in types:
        remedy = "call app.setup_security()" if serializer == "auth" else "install it"
        raise ConfigError(f"{whose} is {serializer!r}, which kombu does not know: {remedy}")
    accepted = list(app.conf.accept_content)
    if {serializer, types[serializer]}.isdisjoint(accepted):
        raise ConfigError(
            f"{whose} is {serializer!r}, and workers accept {', '.join(accepted)} only (accept_content): "
            "they would drop each run. Configure the app before its tasks are exposed, with both settings alike"
        )
