"""Agent cards derived from functions and from plain Celery tasks."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from a2a.types import AgentCapabilities, AgentCard, AgentSkill
from celery import Task


def card_for_task(
    name: str, task: Task, *, description: str | None, version: str, arguments: str, texts: bool
) -> AgentCard:
    """Return a card for a plain Celery task.

    Args:
        name: Name of the agent.
        task: Celery task.
        description: Description on the card, or None for the first paragraph of the task's docstring.
        version: Version on the card.
        arguments: Description of the arguments, or "" if the task has none.
        texts: True if an argument accepts text.
    """
    text = description or _summary(task.run) or name
    return card_for_function(
        name,
        task.run,
        description=text,
        version=version,
        skills=[
            AgentSkill(
                id=name,
                name=name,
                description=f"{text}\n\nA data part names its arguments: {arguments}" if arguments else text,
                tags=["celery-task"],
            )
        ],
        input_modes=["application/json", "text/plain"] if texts else ["application/json"],
        output_modes=["text/plain", "application/json", "application/octet-stream"],
    )


def card_for_function(
    name: str,
    function: Callable[..., Any] | str,
    *,
    description: str | None,
    version: str,
    skills: Sequence[AgentSkill],
    input_modes: Sequence[str],
    output_modes: Sequence[str],
) -> AgentCard:
    """Return a card for a function agent.

    The default description is the first paragraph of the function's docstring or, without a docstring, the agent's
    name. The default skill has the name and the description of the agent.
    """
    text = description or ("" if isinstance(function, str) else _summary(function)) or name
    return AgentCard(
        name=name,
        description=text,
        version=version,
        capabilities=AgentCapabilities(streaming=True),
        default_input_modes=input_modes,
        default_output_modes=output_modes,
        skills=skills or [AgentSkill(id=name, name=name, description=text, tags=["a2a-celery"])],
    )


def _summary(function: Callable[..., Any]) -> str:
    return (inspect.getdoc(function) or "").partition("\n\n")[0]
