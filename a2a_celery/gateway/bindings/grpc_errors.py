"""Errors in the gRPC binding of protocol 1.0: google.rpc.Status with typed details.

The SDK sends an ErrorInfo without metadata. This module adds the error's data, as the other bindings do: the task id,
the extension, or the reference of a log entry.

Source: A2A specification 9.5, 10.6; a2a-sdk 1.3.0.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import grpc
import grpc.aio
from a2a.utils.error_handlers import A2A_DOMAIN
from a2a.utils.errors import A2A_ERROR_MAPPING, A2A_ERROR_REASONS, A2AError, InvalidParamsError
from a2a.utils.grpc_status import status_to_grpc
from a2a.utils.proto_utils import ValidationDetail, validation_errors_to_bad_request
from google.rpc import error_details_pb2, status_pb2

from ...operations.errors import LimitExceededError
from ..protocol_errors import HEADER, retry_seconds

MAX_TEXT_BYTES = 900
"""Maximum size of a text in an error, in bytes. gRPC clients refuse metadata of more than 8 KB. A byte that is not
ASCII needs three bytes in the status message. Each byte of the details, which repeat the text, needs 4/3 bytes."""

MAX_FIELD_BYTES = 2_700
"""Maximum size of the invalid fields and their texts in an error, in bytes."""


def set_error(error: A2AError, context: grpc.aio.ServicerContext[Any, Any]) -> None:
    """Set `error` as the status of the call. The servicer must then return.

    The trailing metadata of a limit error contains the retry delay. gRPC's `abort` is not used: gRPC stores the
    exception that `abort` raises in the call, and the exception's traceback refers to the call. This reference cycle
    would keep all objects of the call until the next garbage collection.
    """
    rich = status_to_grpc(error_status(error))
    metadata = retry_after(error) if isinstance(error, LimitExceededError) else ()
    context.set_trailing_metadata((*(context.trailing_metadata() or ()), *metadata, *rich.trailing_metadata))
    context.set_code(rich.code)
    context.set_details(rich.details)


def status_code(error: A2AError) -> grpc.StatusCode:
    """Return the gRPC status of `error`."""
    mapping = A2A_ERROR_MAPPING.get(type(error))
    return grpc.StatusCode.UNKNOWN if mapping is None else grpc.StatusCode[mapping.grpc_status]


def error_status(error: A2AError) -> status_pb2.Status:
    """Return `error` as google.rpc.Status."""
    status = status_pb2.Status(code=status_code(error).value[0], message=shortened(error.message))
    reason = A2A_ERROR_REASONS.get(type(error), "UNKNOWN_ERROR")
    metadata = {str(name): _text(value) for name, value in (error.data or {}).items()}
    status.details.add().Pack(error_details_pb2.ErrorInfo(reason=reason, domain=A2A_DOMAIN, metadata=metadata))
    if isinstance(error, InvalidParamsError) and error.data and error.data.get("errors"):
        status.details.add().Pack(validation_errors_to_bad_request(list(_first_fields(error.data["errors"]))))
    if isinstance(error, LimitExceededError):
        retry_info = error_details_pb2.RetryInfo()
        retry_info.retry_delay.FromSeconds(retry_seconds(error))
        status.details.add().Pack(retry_info)
    return status


def shortened(text: str) -> str:
    """Return `text`, cut to `MAX_TEXT_BYTES` bytes."""
    encoded = text.encode(errors="replace")
    return text if len(encoded) <= MAX_TEXT_BYTES else f"{encoded[: MAX_TEXT_BYTES - 3].decode(errors='ignore')}..."


def _first_fields(errors: Iterable[Mapping[str, str]]) -> Iterator[ValidationDetail]:
    """Yield the first field errors, with shortened texts, as long as they do not exceed `MAX_FIELD_BYTES` bytes."""
    size = 0
    for error in errors:
        field, text = error["field"], shortened(error["message"])
        size += len(f"{field}{text}".encode(errors="replace"))
        if size > MAX_FIELD_BYTES:
            return
        yield {"field": field, "message": text}


def retry_after(error: LimitExceededError) -> tuple[tuple[str, str], ...]:
    """Return the trailing metadata with the seconds after which the caller may retry."""
    return ((HEADER.lower(), str(retry_seconds(error))),)


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)
