"""Inbox of the page: the caller's tasks of all agents that wait for a person, oldest status first.

A2A has no operation that reads the tasks of several agents, or the oldest tasks first.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from a2a.server.context import ServerCallContext
from google.protobuf.json_format import MessageToDict
from starlette.requests import Request
from starlette.routing import Route

from ..lifecycle.references import Scope
from ..operations.errors import invalid
from ..store import AsyncStore, Keys
from ..store.tasks.listing import position_of, position_token
from ..store.tasks.waiting import list_waiting
from .auth.refusal_log import RefusalLog
from .bindings.endpoints import user_of
from .gate import Gate
from .middleware.json_endpoint import json_endpoint
from .operations.validation import require_tenant

PATH = "/ui/inbox.json"
PAGE = 20
MAX_PAGE = 99
"""Default and maximum number of tasks on a page."""


def inbox_route(agents: Collection[str], store: AsyncStore, keys: Keys, gate: Gate, refusal_log: RefusalLog) -> Route:
    """Return the route of ``/ui/inbox.json``. Each request counts against the rate limit of its caller."""

    async def read(request: Request, owner: str) -> dict[str, Any]:
        require_tenant(ServerCallContext(user=user_of(request)))
        query = request.query_params
        agent, size, cursor = query.get("agent", ""), query.get("size", str(PAGE)), None
        if agent and agent not in agents:
            raise invalid("agent", f"Send one of {', '.join(agents)}, or leave it out.")
        if not (size.isascii() and size.isdecimal() and len(size) <= 2):
            raise invalid("size", f"Send a number from 0 to {MAX_PAGE}, or leave it out.")
        if query.get("cursor") and (cursor := position_of(query["cursor"])) is None:
            raise invalid("cursor", "Send the value of `next` of the previous page.")
        scopes = [Scope(name, "", owner) for name in ([agent] if agent else agents)]
        page = await store.run(list_waiting(keys, scopes, page_size=int(size), cursor=cursor))
        last = page.tasks[-1][1] if page.more and page.tasks else None
        return {
            "tasks": [{"agent": name, "task": MessageToDict(task)} for name, task in page.tasks],
            "totals": page.totals,
            "next": position_token(last.status.timestamp.ToMicroseconds(), last.id) if last is not None else None,
        }

    return Route(PATH, json_endpoint(gate, refusal_log, "ReadInbox", read), methods=["GET"])
