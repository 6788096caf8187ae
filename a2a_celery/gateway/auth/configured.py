"""The authentication that the settings ask for."""

from __future__ import annotations

from ipaddress import ip_address
from urllib.parse import SplitResult, urlsplit

from ...caller import CARRIED_HEADERS
from ...clock import SYSTEM_CLOCK, Clock
from ...config import Settings
from ...errors import ConfigError
from ..checks import LAST_EVENT_ID
from .api_keys import ApiKeys
from .authenticator import Authenticator
from .jwks import FetchedKeys
from .keys import KEY_TYPES, KeySource, read_key
from .proxies import ProxyIdentity
from .schemes import Scheme
from .tokens import BearerTokens

NEEDED_BY_TOKENS = ("auth_jwt_algorithms", "auth_jwt_issuer", "auth_jwt_audience")


def authenticator_of(settings: Settings, clock: Clock = SYSTEM_CLOCK) -> Authenticator | None:
    """What checks who asks; None: the settings ask for nobody.

    Raises:
        ConfigError: they contradict each other, or lack something; says what to set.
    """
    schemes: list[Scheme] = []
    if settings.auth_jwks_url is not None or settings.auth_jwt_key is not None:
        schemes.append(_tokens(settings, clock))
    else:
        _require_idle(settings, (*NEEDED_BY_TOKENS, "auth_jwt_tenants_claim"), "a2a_auth_jwks_url or a2a_auth_jwt_key")
    if settings.auth_api_keys is not None:
        if not settings.api_keys:
            raise ConfigError("a2a_auth_api_keys is empty, so nobody could come in: add a key, or leave it out")
        schemes.append(ApiKeys(settings.api_keys, settings.auth_api_key_header))
    if settings.auth_identity_header is not None:
        if not settings.auth_proxy_networks:
            raise ConfigError(
                "a2a_auth_identity_header is set, and a2a_auth_proxy_networks is not: name the networks of your proxies"
            )
        schemes.append(ProxyIdentity(settings.auth_identity_header, settings.auth_proxy_networks))
    else:
        _require_idle(settings, ("auth_proxy_networks",), "a2a_auth_identity_header")
    _require_own_headers(settings)
    return Authenticator(schemes) if schemes else None


def _require_idle(settings: Settings, names: tuple[str, ...], owner: str) -> None:
    """A setting that would do nothing is taken for one that was meant to do something."""
    for name in names:
        if getattr(settings, name):
            raise ConfigError(f"a2a_{name} is set, and means nothing without {owner}: set that, or leave it out")


def _require_own_headers(settings: Settings) -> None:
    names = [
        name.lower()
        for name, used in (
            ("Authorization", settings.auth_jwks_url or settings.auth_jwt_key),
            (settings.auth_api_key_header, settings.auth_api_keys),
            (settings.auth_identity_header or "", settings.auth_identity_header),
        )
        if used is not None
    ]
    reserved = {*CARRIED_HEADERS, LAST_EVENT_ID} & set(names)
    if reserved:
        raise ConfigError(
            f"a2a_auth_api_key_header and a2a_auth_identity_header: {', '.join(sorted(reserved))} means something else"
        )
    if len(set(names)) < len(names):
        raise ConfigError(
            "a2a_auth_api_key_header and a2a_auth_identity_header: two schemes in one header; give each its own"
        )


def _tokens(settings: Settings, clock: Clock) -> BearerTokens:
    missing = [f"a2a_{name}" for name in NEEDED_BY_TOKENS if not getattr(settings, name)]
    if missing:
        raise ConfigError(
            f"bearer tokens need {', '.join(missing)} too: without, a token that was signed for somebody else, or in a "
            "way that nobody meant, would be believed"
        )
    algorithms = settings.auth_jwt_algorithms
    unknown = [name for name in algorithms if name not in KEY_TYPES]
    if unknown:
        raise ConfigError(f"a2a_auth_jwt_algorithms = {', '.join(unknown)}: known are {', '.join(KEY_TYPES)}")
    if len({KEY_TYPES[name] == "oct" for name in algorithms}) > 1:
        raise ConfigError(
            f"a2a_auth_jwt_algorithms = {', '.join(algorithms)}: shared secrets and public keys do not go together"
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
            f"a2a_auth_jwt_algorithms has {', '.join(secret)}: what a JWKS shows to everybody is no shared secret; "
            "RS256 or ES256 is meant, or a2a_auth_jwt_key"
        )
    url = urlsplit(settings.auth_jwks_url)
    if url.scheme != "https" and not (url.scheme == "http" and is_loopback(url.hostname or "")):
        raise ConfigError(
            f"a2a_auth_jwks_url = {settings.auth_jwks_url!r}: must begin with https:// (http:// to this machine only): "
            "who can change the keys on their way can be anybody"
        )
    if not url.hostname or not _has_port(url):
        raise ConfigError(f"a2a_auth_jwks_url = {settings.auth_jwks_url!r}: must name a host")
    return FetchedKeys(settings.auth_jwks_url, clock=clock)


def _has_port(url: SplitResult) -> bool:
    """Whether the port is one, or left out."""
    try:
        return url.port != 0
    except ValueError:
        return False


def is_loopback(host: str) -> bool:
    """Return True if only this machine reaches the address."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
