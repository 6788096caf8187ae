"""Request to the operator's API, as the operations of the API and of features receive it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from celery import Celery
from starlette.requests import Request

from ...lifecycle.references import Scope
from ...operations.errors import invalid
from ...operations.service import TaskService
from ...store import AsyncStore, Keys
from ..auth.schemes import Identity
from ..bindings.endpoints import user_of


@dataclass(frozen=True, slots=True)
class OperatorRequest:
    """Request of a caller with the operator's role.

    Attributes:
        http: HTTP request.
        operator: Name of the operator, or "" without authentication.
        app: Celery app of the gateway.
        service: Service of the gateway.
    """

    http: Request
    operator: str
    app: Celery
    service: TaskService

    @property
    def store(self) -> AsyncStore:
        """Store of the fleet."""
        return self.service.store

    @property
    def keys(self) -> Keys:
        """Keys of the fleet."""
        return self.service.keys

    @property
    def task_id(self) -> str:
        """Id of the task in the path."""
        task_id: str = self.http.path_params["id"]
        return task_id

    async def body(self) -> dict[str, Any]:
        """Return the body, or {} if it is empty. `guard_rest` has checked that the body is a JSON object."""
        return await self.http.json() if await self.http.body() else {}

    def cursor(self) -> int:
        """Return the cursor in the query, or 0 for the first page. The cursor is `next` of the previous page.

        Raises:
            InvalidParamsError: The cursor is not a number below 2**64, the limit of Redis.
        """
        text = self.http.query_params.get("cursor", "0")
        if not (text.isascii() and text.isdecimal() and len(text) <= 20 and int(text) < 2**64):
            raise invalid("cursor", "Send the value of `next` of the previous page.")
        return int(text)

    def owns(self, scope: Scope) -> bool:
        """Return True if a scope contains the operator's own tasks."""
        user = user_of(self.http)
        return scope.owner == self.operator and (not isinstance(user, Identity) or user.may_use(scope.tenant))
