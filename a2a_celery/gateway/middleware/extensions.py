"""Negotiation of extensions. An extension is active if the client requests it and the card declares it. The response
lists the active extensions in the same service parameter as the request, because the specification defines no parameter
for responses.

Source: A2A specification 3.2.6 and 4.6; unknown extensions are ignored (4.6.3).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from a2a.extensions.common import HTTP_EXTENSION_HEADER, get_requested_extensions
from a2a.types import AgentCard
from starlette.requests import Request
from starlette.responses import Response

Endpoint = Callable[[Request], Awaitable[Response]]

CARDS = "a2a_cards"
"""Key of a request's scope and its call context for a list with the card of the agent that the tenant selects."""


def active_extensions(card: AgentCard, requested_uris: set[str]) -> str:
    """Return the requested extensions of `card` in the format of the header ``A2A-Extensions``, or "" if there are
    none."""
    return ",".join(sorted({extension.uri for extension in card.capabilities.extensions} & requested_uris))


def echo_extensions(endpoint: Endpoint, card: AgentCard, *, shared: bool = False) -> Endpoint:
    """Wrap `endpoint` so that its responses list the active extensions in the header ``A2A-Extensions``.

    `card` declares the extensions. At a `shared` address, the card of the agent that the tenant selects declares them.
    """
    if not card.capabilities.extensions and not shared:
        return endpoint

    async def echoing(request: Request) -> Response:
        response = await endpoint(request)
        requested_uris = get_requested_extensions(request.headers.getlist(HTTP_EXTENSION_HEADER))
        active = active_extensions((request.scope.get(CARDS) or [card])[-1], requested_uris)
        if active:
            response.headers[HTTP_EXTENSION_HEADER] = active
        return response

    return echoing
