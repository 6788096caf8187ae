"""Agents as they are registered: a card, how to get the code, where its runs go. No code is imported here."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from a2a.server.agent_execution import AgentExecutor
from a2a.types import AgentCapabilities, AgentCard, AgentSkill

from .errors import ConfigError

NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,62}")
"""An agent's name is part of a URL, of a Celery task's name and of keys in the store."""

ExecutorSource = AgentExecutor | type[AgentExecutor] | Callable[[], AgentExecutor] | str
"""An executor, its class, a function that makes one, or "module:name" of any of these."""

CELERY_OPTIONS = frozenset({"queue", "priority", "exchange", "routing_key", "expires"})
"""What an agent may say about how its runs are published."""


@dataclass(frozen=True, slots=True)
class Agent:
    """One agent of an app.

    `code` is an executor's source or a function of a `Turn`; `kind` says which. `options` go to
    Celery's ``apply_async`` with every run.
    """

    name: str
    card: AgentCard
    kind: Literal["executor", "function"]
    code: Any
    extended_card: AgentCard | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise ConfigError(f"agent name {self.name!r}: use lower-case letters, digits, '_', '.' and '-', 63 at most")
        unknown = set(self.options) - CELERY_OPTIONS
        if unknown:
            known = ", ".join(sorted(CELERY_OPTIONS))
            raise ConfigError(f"agent {self.name!r}: unknown option {sorted(unknown)[0]!r}; known: {known}")
        if self.card.capabilities.push_notifications:
            raise ConfigError(
                f"agent {self.name!r}: its card promises push notifications, which this version does not deliver; "
                "set capabilities.push_notifications to False"
            )
        if self.extended_card is not None and not self.card.capabilities.extended_agent_card:
            raise ConfigError(
                f"agent {self.name!r}: an extended card needs capabilities.extended_agent_card = True in the public one"
            )


def name_from_card(card: AgentCard) -> str:
    """A usable name made from the card's: "Route Planner 2" → "route-planner-2"."""
    name = re.sub(r"[^a-z0-9]+", "-", card.name.lower()).strip("-")[:63]
    if not name:
        raise ConfigError(f"the card's name {card.name!r} makes no agent name: pass name=")
    return name


def card_for_function(
    name: str,
    function: Callable[..., Any],
    *,
    description: str | None,
    version: str,
    skills: Sequence[AgentSkill],
    input_modes: Sequence[str],
    output_modes: Sequence[str],
) -> AgentCard:
    """The card of a function agent: what was said about it, else its docstring; one skill if none was named."""
    text = description or (inspect.getdoc(function) or "").partition("\n\n")[0] or name
    return AgentCard(
        name=name,
        description=text,
        version=version,
        capabilities=AgentCapabilities(streaming=True, push_notifications=False),
        default_input_modes=input_modes,
        default_output_modes=output_modes,
        skills=skills or [AgentSkill(id=name, name=name, description=text, tags=["a2a-celery"])],
    )
