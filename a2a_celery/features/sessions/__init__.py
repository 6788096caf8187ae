"""Sessions: state of an agent for each context, which a run reads when it begins and saves when it ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from ...errors import ConfigError
from ..feature import Feature


@dataclass(frozen=True, slots=True)
class Sessions(Feature):
    """Sessions of one agent."""

    OPTIONS: ClassVar[frozenset[str]] = frozenset({"session"})
    saves_context_data: ClassVar[bool] = True

    @classmethod
    def of_agent(cls, agent: str, options: Mapping[str, Any]) -> Self | None:
        """Return the sessions of an agent with ``session=True``, or None."""
        session = options.get("session", False)
        if not isinstance(session, bool):
            raise ConfigError(f"agent {agent!r}: session = {session!r}: True or False")
        return cls() if session else None


def framework_options(agent: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of an agent whose code an adapter in ``frameworks`` has returned: `options`, with a session.

    Raises:
        ConfigError: The option `session` is not True.
    """
    options = {"session": True, **options}
    if options["session"] is not True:
        raise ConfigError(
            f"agent {agent!r}: session = {options['session']!r}: an agent of a framework stores its conversation in "
            "the session; leave the option out"
        )
    return options
