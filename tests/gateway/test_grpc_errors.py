"""Errors over gRPC. As in the other bindings, the metadata of the ErrorInfo contains the data of the error."""

from __future__ import annotations

from typing import Any

import grpc.aio
import pytest
from a2a.types import GetTaskRequest, SubscribeToTaskRequest, a2a_pb2_grpc
from a2a.utils.errors import A2AError, ExtensionSupportRequiredError, InternalError, UnsupportedOperationError

from a2a_celery.errors import ConfigError
from a2a_celery.gateway.auth.authenticator import Authenticator
from a2a_celery.gateway.auth.schemes import Identity, PresentedCredentials
from a2a_celery.gateway.bindings.grpc import GrpcServer
from a2a_celery.operations.errors import LimitExceededError, invalid, invalid_fields, not_found
from tests.support.clients.faults import Fault, from_grpc
from tests.support.processes.fleet import free_port
from tests.support.waiting import LIMIT


class RefusingAuthenticator(Authenticator):
    """Authenticator that refuses every call with the given error."""

    def __init__(self, error: A2AError) -> None:
        super().__init__([])
        self._error = error

    async def identify(self, presented: PresentedCredentials, **_: Any) -> Identity:
        raise self._error


async def error_over_grpc(error: A2AError, *, streams: bool = False) -> Fault:
    """Return `error` as a gRPC client receives it."""
    port = free_port()
    server = GrpcServer({}, "127.0.0.1", port, 1024, RefusingAuthenticator(error))
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub = a2a_pb2_grpc.A2AServiceStub(channel)
            if streams:
                call = anext(aiter(stub.SubscribeToTask(SubscribeToTaskRequest(id="some"), timeout=LIMIT)))
            else:
                call = stub.GetTask(GetTaskRequest(id="some"), timeout=LIMIT)
            with pytest.raises(grpc.aio.AioRpcError) as exc_info:
                await call
    finally:
        await server.stop(0)
    return from_grpc(exc_info.value)


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize(
    ("error", "reason", "metadata"),
    [
        (not_found("some"), "TASK_NOT_FOUND", {"taskId": "some"}),
        (ExtensionSupportRequiredError(data={"extension": "x"}), "EXTENSION_SUPPORT_REQUIRED", {"extension": "x"}),
        (InternalError(data={"reference": "abc", "tries": 3}), "INTERNAL_ERROR", {"reference": "abc", "tries": "3"}),
        (UnsupportedOperationError(), "UNSUPPORTED_OPERATION", {}),
        (LimitExceededError(data={"retryAfter": "3"}), "LIMIT_EXCEEDED", {"retryAfter": "3"}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_the_error_info_has_the_data(
    error: A2AError, reason: str, metadata: dict[str, str], streams: bool
) -> None:
    received_error = await error_over_grpc(error, streams=streams)

    assert (received_error.reason, received_error.metadata) == (reason, metadata)


async def test_wrong_fields_are_named_beside_it() -> None:
    error = await error_over_grpc(invalid("message.role", "it must be ROLE_USER"))

    assert (error.reason, error.metadata) == ("INVALID_PARAMS", {})
    assert error.fields == {"message.role": "it must be ROLE_USER"}


@pytest.mark.parametrize("length", [3_000, 40_000])
async def test_a_long_text_is_cut(length: int) -> None:
    """A client refuses an error whose metadata exceeds 8 to 16 KB."""
    error = await error_over_grpc(invalid("tenant", "one, " * (length // 5)))

    assert error.reason == "INVALID_PARAMS"
    assert error.message.startswith("tenant: one, one")
    assert error.fields["tenant"].endswith("...")


@pytest.mark.parametrize("host", ["nohost.invalid", "", "http://127.0.0.1"])
async def test_an_address_on_which_the_gateway_cannot_listen_is_refused_with_its_setting(host: str) -> None:
    server = GrpcServer({}, host, free_port(), 1024)

    with pytest.raises(ConfigError, match=r"gRPC cannot listen on .*--host"):
        await server.start()

    await server.stop(0)


@pytest.mark.parametrize("character", ["e", "é", "語"])
async def test_many_invalid_fields_fit_into_an_error(character: str) -> None:
    """A client refuses an error whose metadata exceeds 8 to 16 KB. A text needs up to three bytes for a character, and
    gRPC sends each of these bytes as three."""
    errors = [{"field": f"message.parts[0].data.{number}", "message": character * 300} for number in range(20)]

    error = await error_over_grpc(invalid_fields(errors))

    assert error.reason == "INVALID_PARAMS"
    assert error.message.startswith("message.parts[0].data.0: ")
    assert list(error.fields)[:2] == [item["field"] for item in errors[:2]]
    assert all(text.startswith(character) for text in error.fields.values())
