"""Security schemes of cards, from the settings or from the card itself.

Source: A2A specification 4.5: `security_requirements` are alternatives, each of schemes that are all needed.
"""

from __future__ import annotations

from dataclasses import replace

from a2a.types import AgentCard, SecurityRequirement, SecurityScheme, StringList

from ...agents import Agent
from ...errors import ConfigError
from .authenticator import Authenticator
from .tokens import BearerTokens

TOKENS = ("http_auth_security_scheme", "oauth2_security_scheme", "open_id_connect_security_scheme")
"""Schemes whose credentials are bearer tokens."""


def secured(agent: Agent, authenticator: Authenticator | None) -> Agent:
    """Return `agent` with the security schemes of the settings on its cards. A card that declares schemes keeps them.

    Raises:
        ConfigError: The declared schemes do not match the settings.
    """
    if authenticator is None:
        return agent
    extended = agent.extended_card
    return replace(
        agent,
        card_source=_with_schemes(agent.card, authenticator, agent.name),
        extended_card=None if extended is None else _with_schemes(extended, authenticator, agent.name),
    )


def _with_schemes(card: AgentCard, authenticator: Authenticator, agent: str) -> AgentCard:
    if card.security_schemes or card.security_requirements:
        _require_agreement(card, authenticator, agent)
        return card
    filled = AgentCard()
    filled.CopyFrom(card)
    for scheme in authenticator.schemes:
        filled.security_schemes[scheme.name].CopyFrom(scheme.security_scheme())
        filled.security_requirements.append(SecurityRequirement(schemes={scheme.name: StringList()}))
    return filled


def _require_agreement(card: AgentCard, authenticator: Authenticator, agent: str) -> None:
    about = f"agent {agent!r}: its card"
    if not card.security_requirements:
        raise ConfigError(
            f"{about} has security_schemes and no security_requirements, as if nothing were needed: add them"
        )
    for requirement in card.security_requirements:
        if len(requirement.schemes) != 1:
            raise ConfigError(
                f"{about} asks for {' and '.join(sorted(requirement.schemes)) or 'nothing'}, and this gateway for "
                f"{_names(authenticator)}: name one scheme in each of its security_requirements"
            )
        [name] = requirement.schemes
        if name not in card.security_schemes:
            raise ConfigError(f"{about} requires {name!r}, which is not among its security_schemes")
        if not any(_agree(card.security_schemes[name], scheme.security_scheme()) for scheme in authenticator.schemes):
            raise ConfigError(
                f"{about} requires {name!r}, and this gateway takes {_names(authenticator)}: change the card, or the "
                "settings a2a_auth_…"
            )


def _agree(declared: SecurityScheme, ours: SecurityScheme) -> bool:
    """Return whether credentials for the scheme `declared` are accepted by `ours`."""
    kind = declared.WhichOneof("scheme")
    if ours.HasField("http_auth_security_scheme"):
        http = declared.http_auth_security_scheme
        return kind in TOKENS and (kind != TOKENS[0] or http.scheme.lower() == BearerTokens.challenge.lower())
    if ours.HasField("api_key_security_scheme"):
        theirs, here = declared.api_key_security_scheme, ours.api_key_security_scheme
        return bool(theirs.location.lower() == here.location and theirs.name.lower() == here.name.lower())
    return bool(kind == ours.WhichOneof("scheme"))


def _names(authenticator: Authenticator) -> str:
    return " or ".join(scheme.name for scheme in authenticator.schemes)
