"""gRPC server of a test in the test process, with a client of its agent."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio
from a2a.compat.v0_3 import a2a_v0_3_pb2_grpc
from a2a.types import AgentCapabilities, AgentCard, AgentInterface, a2a_pb2_grpc

from a2a_celery.client import RemoteAgent


@asynccontextmanager
async def grpc_agent(
    servicer: object,
    *,
    version: str = "1.0",
    url: str = "{address}",
    tls: grpc.ServerCredentials | None = None,
    streaming: bool = True,
    **options: Any,
) -> AsyncIterator[RemoteAgent]:
    """Serve `servicer` over gRPC, and yield a client of its agent.

    Args:
        servicer: Object with the methods of the service.
        version: Version of the protocol, "1.0" or "0.3".
        url: URL of the interface in the agent's card, with the server's host and port as ``{address}``.
        tls: Credentials of a server with TLS, or None for a server without TLS.
        streaming: True if the agent's card promises streams.
        options: Options of `RemoteAgent`.
    """
    stubs = {"1.0": a2a_pb2_grpc, "0.3": a2a_v0_3_pb2_grpc}[version]
    server = grpc.aio.server()
    stubs.add_A2AServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0") if tls is None else server.add_secure_port("127.0.0.1:0", tls)
    await server.start()
    interface = AgentInterface(
        url=url.format(address=f"127.0.0.1:{port}"), protocol_binding="GRPC", protocol_version=version
    )
    card = AgentCard(name="it", capabilities=AgentCapabilities(streaming=streaming), supported_interfaces=[interface])
    try:
        async with RemoteAgent("http://127.0.0.1", card=card, **options) as agent:
            yield agent
    finally:
        await server.stop(None)
