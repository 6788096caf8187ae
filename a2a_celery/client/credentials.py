"""What a client says of itself, on every request to an agent: added by an interceptor of the SDK's client.

It goes to the agent's URL and to the interface that the agent's card names, wherever that is.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from inspect import isawaitable

from a2a.client import ClientCallContext, ClientCallInterceptor
from a2a.client.interceptors import AfterArgs, BeforeArgs
from a2a.types import AgentCard

from ..errors import ConfigError

HeaderSource = Mapping[str, str] | Callable[[], Mapping[str, str] | Awaitable[Mapping[str, str]]]
"""Headers, or what gives those of the next request: a fresh token, say."""

API_KEY_HEADER = "X-API-Key"
"""Where an API key goes if the agent's card does not say."""


class Credentials:
    """The headers of each request: `headers`, beside them a bearer token or an API key, if there is one.

    An API key goes into the header that the card's security scheme names.

    Raises:
        ConfigError: an empty token or key.
    """

    def __init__(
        self, headers: HeaderSource | None = None, *, bearer: str | None = None, api_key: str | None = None
    ) -> None:
        if bearer == "" or api_key == "":
            raise ConfigError("an empty bearer token or API key: give None if there is none")
        self._source = {} if headers is None else headers
        self._bearer = bearer
        self._api_key = api_key

    async def headers(self, card: AgentCard | None = None) -> dict[str, str]:
        """The headers of the next request; `card` None: the card itself is asked for.

        Raises:
            ConfigError: the card wants API keys in the query or in a cookie, which is not done here.
        """
        given = self._source() if callable(self._source) else self._source
        found = dict(await given if isawaitable(given) else given)
        if self._bearer is not None:
            found["Authorization"] = f"Bearer {self._bearer}"
        if self._api_key is not None:
            found[_api_key_header(card)] = self._api_key
        return found


class AddsHeaders(ClientCallInterceptor):
    """Puts credentials on each call of the SDK's client."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials

    async def before(self, args: BeforeArgs) -> None:
        """Adds the headers; those that the call has already stay."""
        headers = await self._credentials.headers(args.agent_card)
        context = args.context or ClientCallContext()
        context.service_parameters = {**headers, **(context.service_parameters or {})}
        args.context = context

    async def after(self, args: AfterArgs) -> None:
        """Nothing."""


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
    raise ConfigError("the agent wants its API key in the query or a cookie, which is not done here: use a header")
