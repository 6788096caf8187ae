"""Private API of a2a-sdk that the gateway and the archive use.

This module does not import the SDK, because each part of the SDK is large and few processes need all parts.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from . import Library, base_in

if TYPE_CHECKING:
    from a2a.types import Task
    from starlette.responses import JSONResponse

A2A_SDK = Library("a2a-sdk[http-server]>=1.3.0,<2", checked="1.3.0")


class RowConversion:
    """Mixin for a subclass of ``DatabaseTaskStore`` that exposes the store's conversion between tasks and rows."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        A2A_SDK.require(base_in(cls, "a2a"), "_to_orm", "_from_orm")

    def to_row(self: Any, task: Task) -> Any:
        """Convert a task to a row without an owner."""
        return self._to_orm(task, "")

    def from_row(self: Any, row: Any) -> Any:
        """Convert a row to a task."""
        return self._from_orm(row)


def keep_legacy_codes(jsonrpc_adapter: Any, codes: Iterable[int]) -> None:
    """Make the SDK's module ``jsonrpc_adapter`` of protocol 0.3 send errors with `codes` unchanged. The adapter sends
    errors with a code that 0.3 does not define as internal errors."""
    A2A_SDK.require(jsonrpc_adapter, "_V03_ERROR_CODES")
    jsonrpc_adapter._V03_ERROR_CODES = jsonrpc_adapter._V03_ERROR_CODES.union(codes)


class AdaptedErrors:
    """Mixin for a subclass of ``JSONRPC03Adapter`` that passes each error to `adapt_error` before it is sent."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        A2A_SDK.require(base_in(cls, "a2a"), "_generate_error_response")

    def adapt_error(self, error: Any) -> tuple[Any, int]:
        """Return the error to send and the HTTP status of its response."""
        return error, 200

    def _generate_error_response(self, request_id: Any, error: Any) -> JSONResponse:
        adapted_error, status = self.adapt_error(error)
        response: JSONResponse = super()._generate_error_response(request_id, adapted_error)  # type: ignore[misc]
        response.status_code = status
        return response
