"""Extensions: those that the client asks for and the card declares are active for a call, and the answer says so.

Source: A2A specification 3.2.6 and 4.6; unknown ones are ignored (4.6.3). It leaves open how an agent says which it
honours: here it is the service parameter of the request, in the answer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from a2a.extensions.common import HTTP_EXTENSION_HEADER, get_requested_extensions
from a2a.types import AgentCard
from starlette.requests import Request
from starlette.responses import Response

Endpoint = Callable[[Request], Awaitable[Response]]


def active_extensions(card: AgentCard, asked: set[str]) -> str:
    """The extensions of `card` among those that were `asked` for, as a header says them; "" for none."""
    return ",".join(sorted({extension.uri for extension in card.capabilities.extensions} & asked))


def echo_extensions(endpoint: Endpoint, card: AgentCard) -> Endpoint:
    """`endpoint`, an HTTP one, with the active extensions in the header ``A2A-Extensions`` of its answers."""
    if not card.capabilities.extensions:
        return endpoint

    async def echoing(request: Request) -> Response:
        response = await endpoint(request)
        active = active_extensions(card, get_requested_extensions(request.headers.getlist(HTTP_EXTENSION_HEADER)))
        if active:
            response.headers[HTTP_EXTENSION_HEADER] = active
        return response

    return echoing
