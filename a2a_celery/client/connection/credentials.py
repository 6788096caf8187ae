"""Credentials of a client, added to every request by an interceptor of the SDK's client.

They are sent to the agent's URL and to the interface that the agent's card names, also on another host.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from inspect import isawaitable

from a2a.client import ClientCallContext, ClientCallInterceptor
from a2a.client.interceptors import AfterArgs, BeforeArgs
from a2a.types import AgentCard

from ...errors import ConfigError

HeaderSource = Mapping[str, str] | Callable[[], Mapping[str, str] | Awaitable[Mapping[str, str]]]
"""Headers, or a function that returns the headers of the next request, for example with a fresh token."""

API_KEY_HEADER = "X-API-Key"
"""Header of an API key if the agent's card names none."""


class Credentials:
    """Headers of every request, with a bearer token or an API key if one is configured.

    Args:
        headers: Headers, or a function (also a coroutine function) that returns those of the next request.
        bearer: Bearer token, or None.
        api_key: API key, or None. It is sent in the header that the card's security scheme names.

    Raises:
        ConfigError: The token or the key is empty.
    """

    def __init__(
        self, headers: HeaderSource | None = None, *, bearer: str | None = None, api_key: str | None = None
    ) -> None:
        if bearer == "" or api_key == "":
            raise ConfigError("an empty bearer token or API key: pass None instead")
        self._source = {} if headers is None else headers
        self._bearer = bearer
        self._api_key = api_key

    async def headers(self, card: AgentCard | None = None) -> dict[str, str]:
        """Return the headers of the next request.

        Args:
            card: The agent's card; None for the request of the card itself.

        Raises:
            ConfigError: The card requires API keys in the query or in a cookie, which is not supported.
        """
        given = self._source() if callable(self._source) else self._source
        found = dict(await given if isawaitable(given) else given)
        if self._bearer is not None:
            found["Authorization"] = f"Bearer {self._bearer}"
        if self._api_key is not None:
            found[_api_key_header(card)] = self._api_key
        return found


class CredentialsInterceptor(ClientCallInterceptor):
    """Interceptor that adds credentials to every call of the SDK's client."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials

    async def before(self, args: BeforeArgs) -> None:
        """Add the headers; headers that the call already has are kept."""
        headers = await self._credentials.headers(args.agent_card)
        context = args.context or ClientCallContext()
        context.service_parameters = {**headers, **(context.service_parameters or {})}
        args.context = context

    async def after(self, args: AfterArgs) -> None:
        """Leave the response unchanged."""


def _api_key_header(card: AgentCard | None) -> str:
    schemes = (
        [] if card is None else [s for s in card.security_schemes.values() if s.HasField("api_key_security_scheme")]
    )
    if not schemes:
        return API_KEY_HEADER
    for scheme in schemes:
        if scheme.api_key_security_scheme.location.lower() == "header":
            name: str = scheme.api_key_security_scheme.name
            return name
    raise ConfigError("the agent requires its API key in the query or a cookie, which is not supported: use a header")
