"""Creation of the authenticator, and of the security schemes on agent cards, from the settings."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from a2a.types import AgentCard, SecurityRequirement, SecurityScheme, StringList

from ...agents import Agent
from ...caller import API_KEY_HEADER, CARRIED_HEADERS
from ...clock import SYSTEM_CLOCK, Clock
from ...crypto.jwk_sets import jwks_url_mistake, printable_url
from ...errors import ConfigError
from ...settings import ANY_ORIGIN, Settings, default_of
from ..operator.role import ANY_CALLER
from ..protocol_errors import LAST_EVENT_ID
from .authenticator import Authenticator
from .key_file import VARIABLE, KeyFile, identities_of
from .keys import KEY_TYPES, FetchedKeys, KeySource, read_key
from .schemes import ApiKeys, ProxyIdentity, Scheme
from .tokens import BearerTokens

MEANS_NOTHING = "has no effect without {}: set that too, or remove this setting"

CREDENTIAL_VARIABLES = "A2A_AUTH_JWKS_URL, A2A_AUTH_JWT_KEY or A2A_AUTH_API_KEYS"
"""Settings of the schemes whose credentials a caller sends in a header, for error texts."""

SCHEME_VARIABLES = f"{CREDENTIAL_VARIABLES.replace(' or', ',')} or A2A_AUTH_IDENTITY_HEADER"
"""Settings of all schemes, for error texts."""

NEEDED_BY_TOKENS = ("auth_jwt_algorithms", "auth_jwt_issuer", "auth_jwt_audience")


def authenticator_from_settings(settings: Settings, clock: Clock = SYSTEM_CLOCK) -> Authenticator | None:
    """Return the authenticator, or None if the settings require no authentication.

    Raises:
        ConfigError: The settings contradict each other or are incomplete. The message states what to set.
    """
    schemes: list[Scheme] = []
    if settings.auth_jwks_url is not None or settings.auth_jwt_key is not None:
        schemes.append(_tokens(settings, clock))
    else:
        names = (*NEEDED_BY_TOKENS, "auth_jwt_owner_claim", "auth_jwt_tenants_claim")
        _require_unset(settings, names, MEANS_NOTHING.format("a2a_auth_jwks_url or a2a_auth_jwt_key"))
    if settings.auth_api_keys is not None:
        if not settings.api_keys:
            raise ConfigError(
                "a2a_auth_api_keys is empty, so no caller could authenticate: add a key, or remove the setting"
            )
        schemes.append(_api_keys(settings, clock))
    if settings.auth_identity_header is not None:
        if not settings.auth_proxy_networks:
            raise ConfigError(
                "a2a_auth_identity_header is set, but a2a_auth_proxy_networks is not: name the networks of your proxies"
            )
        schemes.append(ProxyIdentity(settings.auth_identity_header, settings.auth_proxy_networks))
    else:
        _require_unset(settings, ("auth_proxy_networks",), MEANS_NOTHING.format("a2a_auth_identity_header"))
    _require_own_header(settings)
    _require_possible_cors(settings, schemes)
    if schemes:
        reason = "a gateway with authentication ignores it: remove the setting"
        _require_unset(settings, ("allowed_hosts",), reason)
        if ANY_CALLER in settings.operators:
            raise ConfigError("a2a_operators contains *, but this gateway authenticates its callers: name the owners")
    return Authenticator(schemes, clock) if schemes else None


def _require_unset(settings: Settings, names: tuple[str, ...], reason: str) -> None:
    """Raise ConfigError with `reason` if one of the settings `names` has a value other than its default."""
    for name in names:
        value = getattr(settings, name)
        if value and value != default_of(name):
            raise ConfigError(f"a2a_{name} is set, and {reason}")


def require_grpc_authentication(settings: Settings) -> None:
    """Raise ConfigError if gRPC callers are not authenticated.

    Call this function if another application wraps the gateway. That application may authenticate HTTP callers, but
    does not see gRPC calls.
    """
    if settings.grpc_port is None or authenticator_from_settings(settings) is not None:
        return
    raise ConfigError(
        f"a2a_grpc_port = {settings.grpc_port}: an application around a2a.asgi() sees no gRPC, so any caller that "
        f"reaches the port may use it. Set {SCHEME_VARIABLES}, leave the port out, or call "
        "a2a.asgi(standalone=True)"
    )


def _require_own_header(settings: Settings) -> None:
    header = (settings.auth_identity_header or "").lower()
    if header in (*CARRIED_HEADERS, LAST_EVENT_ID):
        raise ConfigError(f"a2a_auth_identity_header = {header}: the header has another use; use another header")
    tokens, api_keys = settings.auth_jwks_url or settings.auth_jwt_key, settings.auth_api_keys
    if {"authorization": tokens, API_KEY_HEADER.lower(): api_keys}.get(header):
        raise ConfigError(f"a2a_auth_identity_header = {header}: another scheme reads the header; use another header")


def _require_possible_cors(settings: Settings, schemes: Sequence[Scheme]) -> None:
    if ANY_ORIGIN in settings.cors_origins and not schemes:
        raise ConfigError(
            "a2a_cors_origins = *, and this gateway does not authenticate its callers, so every web page that a user "
            f"visits could run its agents: name the origins, or set {CREDENTIAL_VARIABLES}"
        )
    if settings.cors_origins and schemes and all(isinstance(scheme, ProxyIdentity) for scheme in schemes):
        raise ConfigError(
            "a2a_cors_origins is set, but browsers send no client certificate for a page of another origin: set "
            f"{CREDENTIAL_VARIABLES} too, or remove the setting"
        )


def _api_keys(settings: Settings, clock: Clock) -> ApiKeys:
    """Return the scheme of API keys. If the keys are from a file, the file is read again when it changes."""
    identities = identities_of(settings.api_keys)
    path = os.environ.get(VARIABLE)
    source = KeyFile(Path(path), identities, clock).identities if path else lambda: identities
    return ApiKeys(source)


def _tokens(settings: Settings, clock: Clock) -> BearerTokens:
    missing = [f"a2a_{name}" for name in NEEDED_BY_TOKENS if not getattr(settings, name)]
    if missing:
        raise ConfigError(
            f"bearer tokens also need {', '.join(missing)}: otherwise a token for another audience, or with another "
            "algorithm, would be accepted"
        )
    algorithms = settings.auth_jwt_algorithms
    unknown = [name for name in algorithms if name not in KEY_TYPES]
    if unknown:
        raise ConfigError(f"a2a_auth_jwt_algorithms = {', '.join(unknown)}: use one of {', '.join(KEY_TYPES)}")
    if len({KEY_TYPES[name] == "oct" for name in algorithms}) > 1:
        raise ConfigError(
            f"a2a_auth_jwt_algorithms = {', '.join(algorithms)}: shared secrets and public keys cannot be combined"
        )
    return BearerTokens(
        _keys(settings, clock),
        algorithms=algorithms,
        issuer=settings.auth_jwt_issuer or "",
        audiences=settings.auth_jwt_audience,
        owner_claim=settings.auth_jwt_owner_claim,
        tenants_claim=settings.auth_jwt_tenants_claim,
    )


def _keys(settings: Settings, clock: Clock) -> KeySource:
    if settings.auth_jwks_url is None:
        return read_key(settings.auth_jwt_key or "", settings.auth_jwt_algorithms)
    if settings.auth_jwt_key is not None:
        raise ConfigError("both a2a_auth_jwks_url and a2a_auth_jwt_key are set: leave one out")
    secret = [name for name in settings.auth_jwt_algorithms if KEY_TYPES[name] == "oct"]
    if secret:
        raise ConfigError(
            f"a2a_auth_jwt_algorithms has {', '.join(secret)}, but a JWKS is public and cannot contain a shared "
            "secret: use RS256 or ES256, or a2a_auth_jwt_key"
        )
    mistake = jwks_url_mistake(settings.auth_jwks_url)
    if mistake:
        raise ConfigError(f"a2a_auth_jwks_url = {printable_url(settings.auth_jwks_url)}: {mistake}")
    return FetchedKeys(settings.auth_jwks_url, clock=clock)


TOKENS = ("http_auth_security_scheme", "oauth2_security_scheme", "open_id_connect_security_scheme")
"""Kinds of security schemes whose credentials are bearer tokens."""


def secure_agent(agent: Agent, authenticator: Authenticator | None) -> Agent:
    """Return `agent` with the configured security schemes on its cards. A card that declares schemes is not changed.

    Raises:
        ConfigError: The schemes that a card declares do not match the settings.
    """
    if authenticator is None:
        return agent
    extended_card = agent.extended_card
    return replace(
        agent,
        card_source=_with_schemes(agent.card, authenticator, agent.name),
        extended_card=None if extended_card is None else _with_schemes(extended_card, authenticator, agent.name),
    )


def _with_schemes(card: AgentCard, authenticator: Authenticator, agent: str) -> AgentCard:
    if card.security_schemes or card.security_requirements:
        _require_agreement(card, authenticator, agent)
        return card
    card_copy = AgentCard()
    card_copy.CopyFrom(card)
    for scheme in authenticator.schemes:
        card_copy.security_schemes[scheme.name].CopyFrom(scheme.security_scheme())
        card_copy.security_requirements.append(SecurityRequirement(schemes={scheme.name: StringList()}))
    return card_copy


def _require_agreement(card: AgentCard, authenticator: Authenticator, agent: str) -> None:
    about = f"agent {agent!r}: its card"
    if not card.security_requirements:
        raise ConfigError(
            f"{about} has security_schemes but no security_requirements, so it requires no credentials: add them"
        )
    for requirement in card.security_requirements:
        if len(requirement.schemes) != 1:
            raise ConfigError(
                f"{about} has a security requirement with {' and '.join(sorted(requirement.schemes)) or 'no scheme'}, "
                f"and this gateway accepts {_names(authenticator)}: name exactly one scheme in each requirement"
            )
        [name] = requirement.schemes
        if name not in card.security_schemes:
            raise ConfigError(f"{about} requires {name!r}, which is not among its security_schemes")
        if not any(_agree(card.security_schemes[name], scheme.security_scheme()) for scheme in authenticator.schemes):
            raise ConfigError(
                f"{about} requires {name!r}, and this gateway accepts {_names(authenticator)}: change the card, or the "
                "settings a2a_auth_…"
            )


def _agree(declared: SecurityScheme, configured: SecurityScheme) -> bool:
    """Return True if the scheme `configured` accepts credentials for the scheme `declared`."""
    kind = declared.WhichOneof("scheme")
    if configured.HasField("http_auth_security_scheme"):
        http = declared.http_auth_security_scheme
        return kind in TOKENS and (kind != TOKENS[0] or http.scheme.lower() == BearerTokens.challenge.lower())
    if configured.HasField("api_key_security_scheme"):
        declared_key, configured_key = declared.api_key_security_scheme, configured.api_key_security_scheme
        return bool(
            declared_key.location.lower() == configured_key.location
            and declared_key.name.lower() == configured_key.name.lower()
        )
    return bool(kind == configured.WhichOneof("scheme"))


def _names(authenticator: Authenticator) -> str:
    return " or ".join(scheme.name for scheme in authenticator.schemes)
